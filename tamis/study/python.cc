#include "tamis/study/python.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace tamis::study {

std::string python() {
  if (const char* given = std::getenv("TAMIS_PYTHON"); given != nullptr && *given != '\0') return given;
  std::error_code ignored;
  if (std::filesystem::exists(".venv/bin/python", ignored)) return ".venv/bin/python";
  return "python3";
}

std::pair<int, std::string> run_program(const std::vector<std::string>& arguments,
                                        const std::vector<std::string>& environment) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> variables;  // execvpe takes the first of two values
  for (const std::string& variable : environment) variables.push_back(const_cast<char*>(variable.c_str()));
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  variables.push_back(nullptr);
  int ends[2];
  if (pipe(ends) != 0) return {-1, ""};
  const pid_t pid = fork();
  if (pid == 0) {  // only system calls from here on: other threads may have held locks at the fork
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    execvpe(argv[0], argv.data(), variables.data());
    _exit(127);
  }
  close(ends[1]);
  std::string output;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) output.append(buffer, count);
  close(ends[0]);
  int status = -1;
  if (pid > 0) waitpid(pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace tamis::study
