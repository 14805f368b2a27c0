#include "tamis/distributed/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tamis/base/testing.h"

namespace tamis::distributed {
namespace {

using ::testing::HasSubstr;

Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string usage_error(const std::map<std::string, std::string>& variables, const std::string& rendezvous = "") {
  const auto [code, message] = tamis::testing::error_of([&] { find_launch(environment_of(variables), rendezvous); });
  EXPECT_EQ(code, ExitCode::kUsage) << message;
  return message;
}

TEST(FindLaunch, IsNoneForASingleProcess) {
  EXPECT_FALSE(find_launch(environment_of({})));
  EXPECT_FALSE(find_launch(environment_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}})));
  // sbatch sets these for its script, which is a single process.
  EXPECT_FALSE(find_launch(environment_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})));
}

TEST(FindLaunch, ReadsTheVariablesOfTorchrun) {
  const auto launch = find_launch(environment_of({{"RANK", "5"},
                                                  {"WORLD_SIZE", "8"},
                                                  {"LOCAL_RANK", "1"},
                                                  {"LOCAL_WORLD_SIZE", "4"},
                                                  {"MASTER_ADDR", "node1"},
                                                  {"MASTER_PORT", "1234"},
                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 5);
  EXPECT_EQ(launch->size, 8);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 4);
  EXPECT_EQ(launch->rendezvous, "tcp://node1:1234");
  EXPECT_TRUE(launch->hosted);
}

TEST(LocalRank, IsTheNumberAmongTheProcessesOfTheMachine) {
  EXPECT_EQ(local_rank(environment_of({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}})), 1);
  EXPECT_EQ(local_rank(environment_of({{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "2"}})),
            2);
  EXPECT_FALSE(local_rank(environment_of({{"RANK", "5"}, {"WORLD_SIZE", "8"}})));
  EXPECT_EQ(local_rank(environment_of({{"LOCAL_RANK", "1"}})), 0) << "not started by a launcher";
}

TEST(FindLaunch, ReadsTheVariablesOfSrun) {
  const auto launch = find_launch(environment_of({{"SLURM_PROCID", "3"},
                                                  {"SLURM_STEP_NUM_TASKS", "4"},
                                                  {"SLURM_LOCALID", "1"},
                                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                                  {"SLURM_STEP_NODELIST", "node[003-004]"},
                                                  {"SLURM_JOB_ID", "12345"}}));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->rendezvous, "tcp://node003:29845");
  EXPECT_FALSE(launch->hosted);
}

TEST(FindLaunch, ReadsTheVariablesOfOpenMpi) {
  std::map<std::string, std::string> variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(find_launch(environment_of(variables))->rendezvous, "tcp://127.0.0.1:29500");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";  // two machines
  EXPECT_THAT(usage_error(variables), HasSubstr("add --rendezvous tcp://HOST:PORT"));
  EXPECT_EQ(find_launch(environment_of(variables), "file:///shared/meet")->rendezvous, "file:///shared/meet");
}

TEST(FindLaunch, PrefersMpirunInAJobOfSlurm) {
  std::map<std::string, std::string> variables = {{"SLURM_PROCID", "0"},
                                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                                  {"MASTER_ADDR", "node1"},
                                                  {"PMI_RANK", "3"},
                                                  {"PMI_SIZE", "8"}};
  EXPECT_EQ(find_launch(environment_of(variables))->rank, 3);
  variables["PMI_RANK"] = "0";
  variables["PMI_SIZE"] = "2";  // srun --mpi=pmi2 sets both
  EXPECT_EQ(find_launch(environment_of(variables))->launcher, "srun");
  variables.insert({{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "6"}});
  EXPECT_EQ(find_launch(environment_of(variables))->rank, 5);
}

TEST(FindLaunch, RefusesWhatIsNoNumber) {
  EXPECT_THAT(usage_error({{"RANK", "two"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK=\"two\": expected a number"));
  EXPECT_THAT(usage_error({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), HasSubstr("from 0 to 3"));
  EXPECT_THAT(usage_error({{"RANK", "0"}, {"WORLD_SIZE", "-1"}}), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(usage_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}}),
              HasSubstr("MASTER_PORT"));
}

TEST(FindLaunch, RefusesARendezvousThatIsNoAddress) {
  const std::map<std::string, std::string> two = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  for (const char* wrong : {"tcp://host", "tcp://host:99999", "tcp://:1", "file://relative", "host:1234"}) {
    EXPECT_THAT(usage_error(two, wrong), HasSubstr("expected tcp://HOST:PORT")) << wrong;
  }
  EXPECT_THAT(usage_error({}, "tcp://host:1234"), HasSubstr("the number of this process is unknown"));
}

TEST(FirstHost, IsThatOfANodeList) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("a1,b[2-3]"), "a1");
  EXPECT_EQ(first_host("node[003-004,7],login"), "node003");
  EXPECT_EQ(first_host("node[5]"), "node5");
}

}  // namespace
}  // namespace tamis::distributed
