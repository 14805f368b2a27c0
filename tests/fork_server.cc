// Preloaded into the program under test, this makes it a server: started once, it has loaded its libraries, which takes
// LibTorch 0.2 to 0.4 s of processor time, and each request runs main() in a new process that it forks. The program
// itself is not changed. tests/fork_server.py is the client.
//
// TAMIS_FORK_SERVER is the descriptor of a listening Unix socket that keeps messages apart, TAMIS_FORK_SERVER_PARENT
// the process whose end ends the server. A request is one message with the descriptors of standard input, output and
// error, and strings that end with NUL: the number of arguments, the working directory, the arguments with the
// program's name first, the environment. It is answered with the process id and, at its end, with the status that
// waitpid returned, both as int.

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

constexpr size_t kMostBytes = 1 << 20;  // arguments and environment of a request
constexpr int kCannotServe = 125;

Main program_main = nullptr;

struct Request {
  int streams[3] = {-1, -1, -1};
  std::vector<std::string> strings;
};

/// The strings are empty when the message is not a request.
Request receive(int connection) {
  Request request;
  std::string text(kMostBytes, '\0');
  iovec buffer{text.data(), text.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof request.streams)];
  msghdr message{};
  message.msg_iov = &buffer;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(connection, &message, 0);
  const cmsghdr* descriptors = CMSG_FIRSTHDR(&message);
  if (size <= 0 || descriptors == nullptr || descriptors->cmsg_type != SCM_RIGHTS) return request;
  std::memcpy(request.streams, CMSG_DATA(descriptors), sizeof request.streams);
  text.resize(static_cast<size_t>(size));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    request.strings.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return request;
}

/// What the program's initializers have put into the environment, for libraries that read it later: the instruction
/// sets of MKL, for example (tamis/base/instruction_set.cc).
std::vector<char*> set_before_main() {
  std::ifstream start("/proc/self/environ", std::ios::binary);
  std::set<std::string> given;
  for (std::string variable; std::getline(start, variable, '\0');) given.insert(variable);
  std::vector<char*> set;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (given.count(*variable) == 0) set.push_back(strdup(*variable));
  }
  return set;
}

/// Does not return from the child before main() does.
int run(const Request& request) {
  for (int stream = 0; stream < 3; ++stream) {
    dup2(request.streams[stream], stream);
    close(request.streams[stream]);
  }
  const auto& strings = request.strings;
  if (chdir(strings[1].c_str()) != 0) return kCannotServe;
  const size_t end = 2 + std::strtoul(strings[0].c_str(), nullptr, 10);
  const std::vector<char*> initialized = set_before_main();
  clearenv();
  for (size_t i = end; i < strings.size(); ++i) putenv(strdup(strings[i].c_str()));
  for (char* variable : initialized) putenv(variable);
  std::vector<char*> arguments;
  for (size_t i = 2; i < end; ++i) arguments.push_back(strdup(strings[i].c_str()));
  arguments.push_back(nullptr);
  return program_main(static_cast<int>(arguments.size()) - 1, arguments.data(), environ);
}

void answer(int connection, int number) {
  if (write(connection, &number, sizeof number) != sizeof number) _exit(kCannotServe);
}

/// Runs main() in a child and reports it; true in the child.
bool serve_request(int connection, const Request& request) {
  const pid_t child = fork();
  if (child == 0) return true;
  if (child < 0) _exit(kCannotServe);
  for (const int stream : request.streams) close(stream);  // so that the reader of a pipe sees its end
  answer(connection, child);
  int status = 0;
  if (waitpid(child, &status, 0) != child) _exit(kCannotServe);
  answer(connection, status);
  _exit(0);
}

int serve(int, char**, char**) {
  const int listening = std::atoi(std::getenv("TAMIS_FORK_SERVER"));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(std::getenv("TAMIS_FORK_SERVER_PARENT"))) return kCannotServe;  // it has ended before
  while (true) {
    const int connection = accept(listening, nullptr, nullptr);
    if (connection < 0) return kCannotServe;
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (fork() == 0) {  // a process for each request: requests may overlap
      close(listening);
      const Request request = receive(connection);
      if (request.strings.size() < 3) _exit(kCannotServe);
      if (serve_request(connection, request)) {
        close(connection);
        return run(request);
      }
    }
    close(connection);
  }
}

}  // namespace

/// Called when all libraries are ready.
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(),
                                 void* stack_end) {
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  program_main = main;
  return start(std::getenv("TAMIS_FORK_SERVER") == nullptr ? main : serve, argc, argv, init, fini, rtld_fini,
               stack_end);
}
