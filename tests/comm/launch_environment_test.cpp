#include "comm/launch_environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::comm::launch_environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> read(const Variables& variables) {
  return read_launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Variables kTorchrun{{"TORCHELASTIC_RUN_ID", "none"},
                          {"RANK", "3"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"}};
const Variables kSrun{{"SLURM_STEP_ID", "0"},    {"SLURM_PROCID", "6"},
                      {"SLURM_NTASKS", "16"},    {"SLURM_LOCALID", "2"},
                      {"SLURM_JOB_ID", "20123"}, {"SLURM_STEP_NODELIST", "node[07-09],x1"}};

void expect(const Variables& variables, const char* launcher, std::uint32_t rank,
            std::uint32_t ranks, std::uint32_t local_rank) {
  const auto found = read(variables);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->launcher, launcher);
  EXPECT_EQ(found->rank, Rank{rank});
  EXPECT_EQ(found->ranks, ranks);
  EXPECT_EQ(found->local_rank, local_rank);
}

TEST(LaunchEnvironment, IsAbsentWhereNoLauncherHasStartedTheProcess) {
  EXPECT_FALSE(read({}).has_value());
  EXPECT_FALSE(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).has_value());
  // The script of a job of SLURM is no rank of it.
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}}).has_value());
}

// Each process of such a job would train by itself.
TEST(LaunchEnvironment, IsRefusedWhereRanksAreNotToldWhereTheyMeet) {
  for (const Variables& variables :
       {Variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}}, Variables{{"WORLD_SIZE", "2"}}}) {
    EXPECT_THAT([&] { static_cast<void>(read(variables)); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("MASTER_ADDR is not set")));
  }
}

TEST(LaunchEnvironment, IsRefusedWhereTwoDisagree) {
  const Variables by_hand{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}};
  const Variables alone[] = {
      {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
      {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}};
  for (Variables variables : alone) {
    variables.insert(by_hand.begin(), by_hand.end());
    EXPECT_THAT([&] { static_cast<void>(read(variables)); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(
                    "=1 make this process rank 0 of 1, and WORLD_SIZE=2 says otherwise")));
  }
  Variables agreed = kOpenMpi;
  agreed.insert({{"RANK", "5"}, {"WORLD_SIZE", "8"}});
  expect(agreed, "mpirun", 5, 8, 1);
}

TEST(LaunchEnvironment, SaysWhereRanksMeetToAProcessThatCannotBeOne) {
  const auto meeting = [](const Variables& variables) {
    return read_meeting([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  Variables beyond = kTorchrun;
  beyond["RANK"] = "4";
  EXPECT_EQ(meeting(beyond)->host, "node7");
  EXPECT_EQ(meeting(beyond)->port, 29501);
  EXPECT_EQ(meeting(beyond)->job, "none");
  EXPECT_EQ(meeting(beyond)->rank, Rank{4});
  beyond["LOCAL_WORLD_SIZE"] = "4";
  EXPECT_EQ(meeting(beyond)->host, "localhost");
  Variables two_launchers = kOpenMpi;
  two_launchers.insert(kTorchrun.begin(), kTorchrun.end());
  two_launchers.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(meeting(two_launchers)->host, "node7");
  EXPECT_EQ(meeting(two_launchers)->rank, Rank{3});
  EXPECT_FALSE(meeting(kOpenMpi).has_value());
  beyond["MASTER_PORT"] = "none";
  EXPECT_FALSE(meeting(beyond).has_value());
}

TEST(LaunchEnvironment, ReadsEveryLauncher) {
  expect(kOpenMpi, "mpirun", 5, 8, 1);
  EXPECT_EQ(read(kOpenMpi)->local_ranks, 4U);
  expect(kTorchrun, "torchrun", 3, 4, 1);
  EXPECT_EQ(read(kTorchrun)->host, "node7");
  EXPECT_EQ(read(kTorchrun)->port, 29501);  // torchrun itself has the port before
  expect(kSrun, "srun", 6, 16, 2);
  EXPECT_FALSE(read(kSrun)->local_ranks.has_value());
  expect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "mpiexec", 1, 2, 0);
  Variables by_hand = kTorchrun;
  by_hand.erase("TORCHELASTIC_RUN_ID");
  expect(by_hand, "torchrun", 3, 4, 1);
}

TEST(LaunchEnvironment, SaysHowLateARankMayBe) {
  for (Variables variables : {kTorchrun, kOpenMpi}) {
    EXPECT_FALSE(read(variables)->timeout.has_value());
    variables["SPILLWAY_TIMEOUT"] = "1800";
    EXPECT_EQ(read(variables)->timeout, 1800U);
  }
}

TEST(LaunchEnvironment, TakesTheInnermostLauncher) {
  Variables both = kSrun;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  expect(both, "mpirun", 5, 8, 1);
  both.insert(kTorchrun.begin(), kTorchrun.end());
  expect(both, "torchrun", 3, 4, 1);
}

TEST(LaunchEnvironment, SaysByWhatAndWhereRanksMeet) {
  EXPECT_EQ(read(kOpenMpi)->backend, "mpi");
  EXPECT_EQ(read(kOpenMpi)->host, "");
  EXPECT_EQ(read(kTorchrun)->backend, "tcp");
  EXPECT_EQ(read(kTorchrun)->job, "none");
  Variables changed = kTorchrun;
  changed["SPILLWAY_MASTER_PORT"] = "4000";
  changed["SPILLWAY_JOB"] = "the second";
  EXPECT_EQ(read(changed)->port, 4000);
  EXPECT_EQ(read(changed)->job, "the second");
  EXPECT_EQ(read(changed)->secret, "");
  changed["SPILLWAY_JOB_SECRET"] = "of all ranks";
  EXPECT_EQ(read(changed)->secret, "of all ranks");
  changed["LOCAL_WORLD_SIZE"] = "4";  // this machine has all of them
  EXPECT_EQ(read(changed)->host, "localhost");
}

TEST(LaunchEnvironment, FindsTheFirstHostAndAPortOfAStepOfSlurm) {
  EXPECT_EQ(read(kSrun)->backend, "tcp");
  EXPECT_EQ(read(kSrun)->host, "node07");
  EXPECT_EQ(read(kSrun)->port, 20'123);
  EXPECT_EQ(read(kSrun)->job, "20123.0");
  Variables changed = kSrun;
  for (const auto& [list, first] : std::map<std::string, std::string>{
           {"a", "a"}, {"a1,b", "a1"}, {"a[3,5-7]", "a3"}, {"a[12]", "a12"}}) {
    changed["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(read(changed)->host, first);
  }
  changed["MASTER_ADDR"] = "elsewhere";
  changed["MASTER_PORT"] = "29500";
  EXPECT_EQ(read(changed)->host, "elsewhere");
  EXPECT_EQ(read(changed)->port, 29'501);
}

TEST(LaunchEnvironment, SeesThatSrunLetsRanksMeetByMpi) {
  const Variables pmix{{"PMIX_RANK", "6"}};
  const Variables pmi2{{"PMI_RANK", "6"}, {"PMI_SIZE", "16"}};
  for (Variables offered : {pmix, pmi2}) {
    offered.insert(kSrun.begin(), kSrun.end());
    expect(offered, "srun", 6, 16, 2);
    EXPECT_EQ(read(offered)->backend, "mpi");
    EXPECT_EQ(read(offered)->host, "node07");  // where they meet by TCP if there is no plugin
  }
  Variables mpiexec_in_a_step = kSrun;
  mpiexec_in_a_step.insert({{"PMI_RANK", "6"}, {"PMI_SIZE", "32"}});
  expect(mpiexec_in_a_step, "mpiexec", 6, 32, 0);
  mpiexec_in_a_step.insert_or_assign("PMI_RANK", "5");
  mpiexec_in_a_step.insert_or_assign("PMI_SIZE", "16");
  expect(mpiexec_in_a_step, "mpiexec", 5, 16, 0);
}

TEST(LaunchEnvironment, NamesWhatWasSetByHandAndNoLauncher) {
  const Variables by_hand{{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}};
  Variables beyond = by_hand;
  beyond["RANK"] = "2";
  for (const Variables& variables : {by_hand, beyond}) {
    EXPECT_THAT([&] { static_cast<void>(read(variables)); },
                testing::ThrowsMessage<Error>(testing::AllOf(
                    testing::HasSubstr("MASTER_ADDR=a says that this process is a rank of a job"),
                    testing::HasSubstr("RANK"), testing::Not(testing::HasSubstr("torchrun")))));
  }
  Variables right = by_hand;
  right["RANK"] = "1";
  EXPECT_EQ(read(right)->variables, "RANK=1 and WORLD_SIZE=2");
}

void expect_refused(Variables variables, const std::string& name, const char* value) {
  if (value == nullptr) {
    variables.erase(name);
  } else {
    variables[name] = value;
  }
  try {
    static_cast<void>(read(variables));
    ADD_FAILURE() << name << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr(name));
    if (value != nullptr) {
      EXPECT_THAT(error.what(), testing::HasSubstr(value));
    }
  }
}

TEST(LaunchEnvironment, RefusesANameThatRanksWouldCutOff) {
  Variables variables = kTorchrun;
  variables["SPILLWAY_JOB"] = std::string(127, 'a');
  EXPECT_EQ(read(variables)->job.size(), 127U);
  variables["SPILLWAY_JOB"] += "b";
  EXPECT_THAT([&] { static_cast<void>(read(variables)); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("has 128 characters")));
}

TEST(LaunchEnvironment, NamesTheVariableThatMakesNoSense) {
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_SIZE", nullptr);
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "0");
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "8x");
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_RANK", "8");
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_RANK", "-1");
  expect_refused(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_RANK", "4");
  expect_refused(kTorchrun, "MASTER_PORT", "65535");  // there is no next one
  expect_refused(kTorchrun, "SPILLWAY_MASTER_PORT", "65536");
  expect_refused(kTorchrun, "SPILLWAY_MASTER_PORT", "0");
  expect_refused(kTorchrun, "MASTER_PORT", nullptr);
  expect_refused(kTorchrun, "SPILLWAY_JOB_SECRET", "");
  expect_refused(kTorchrun, "SPILLWAY_TIMEOUT", "0");
  expect_refused(kOpenMpi, "SPILLWAY_TIMEOUT", "604801");
  expect_refused(kTorchrun, "WORLD_SIZE", "");
  expect_refused(kSrun, "SLURM_STEP_NODELIST", nullptr);
}

}  // namespace
}  // namespace spillway::comm::launch_environment_test
