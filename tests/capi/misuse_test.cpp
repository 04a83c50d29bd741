// What the C interface refuses, what it says then, and that a trainer is usable afterwards.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/capi/fixture.hpp"

namespace spillway::capi_test::misuse_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StrEq;

/// Expects a status and a message with each of the texts.
template <class... Texts>
void expect_refused(spillway_status given, spillway_status expected, Texts... texts) {
  EXPECT_EQ(given, expected) << spillway_last_message();
  EXPECT_THAT(spillway_last_message(), AllOf(HasSubstr(texts)...));
}

class CMisuse : public Training {
 protected:
  /// Gives both gradients, steps, and expects what a trainer does that was never misused.
  void expect_usable() {
    EXPECT_EQ(spillway_discard_gradients(trainer), SPILLWAY_OK) << spillway_last_message();
    EXPECT_EQ(give(0, {1, 1, 1, 1, 1, 1}), SPILLWAY_OK) << spillway_last_message();
    EXPECT_EQ(give(1, {1, 1, 1, 1, 1}), SPILLWAY_OK) << spillway_last_message();
    EXPECT_EQ(spillway_step(trainer, nullptr, nullptr), SPILLWAY_OK) << spillway_last_message();
    for (std::size_t i = 0; i < start[1].size(); ++i) {
      // The first step of Adam without decay is as long as the learning rate, up to eps.
      EXPECT_NEAR(values(1)[i], start[1][i] - 0.02F, 1e-6);
    }
  }

  /// Hands over a gradient of "bias" that `change` has changed.
  template <class Change>
  spillway_status give_changed(Change change) {
    std::vector<float> gradient(5, 1.0F);
    spillway_tensor tensor = tensor_of(std::span(gradient), shapes[1]);
    change(tensor);
    return spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_NOW, nullptr);
  }
};

TEST_F(CMisuse, HandlesThatNameNoTrainer) {
  expect_refused(spillway_step(nullptr, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT,
                 "null pointer", "spillway_create");
  EXPECT_EQ(spillway_destroy(nullptr), SPILLWAY_OK);
  expect_refused(spillway_create(nullptr), SPILLWAY_INVALID_ARGUMENT, "null pointer");
  spillway_trainer* closed = nullptr;
  SPILLWAY_OK_(spillway_create(&closed));
  SPILLWAY_OK_(spillway_destroy(closed));
  expect_refused(spillway_step(closed, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT,
                 "was destroyed");
  expect_refused(spillway_destroy(closed), SPILLWAY_INVALID_ARGUMENT, "was destroyed");
  int number = 0;
  expect_refused(spillway_synchronize(reinterpret_cast<spillway_trainer*>(&number)),
                 SPILLWAY_INVALID_ARGUMENT, "is no trainer");
  start_all();
  expect_usable();
}

TEST_F(CMisuse, CallsInTheWrongOrder) {
  expect_refused(spillway_start(trainer, nullptr), SPILLWAY_INVALID_ARGUMENT, "no parameters");
  add_all();
  expect_refused(spillway_step(trainer, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT,
                 "has not started", "spillway_start");
  expect_refused(give(0, start[0]), SPILLWAY_INVALID_ARGUMENT, "has not started");
  SPILLWAY_OK_(spillway_start(trainer, nullptr));
  expect_refused(spillway_start(trainer, nullptr), SPILLWAY_INVALID_ARGUMENT, "has started");
  const spillway_tensor tensor = tensor_of(std::span(start[0]), shapes[0]);
  expect_refused(spillway_add_parameter(trainer, "late", 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "has started");
  expect_usable();
}

TEST_F(CMisuse, ParametersThatCannotBeRegistered) {
  add_all();
  spillway_tensor tensor = tensor_of(std::span(start[0]), shapes[0]);
  expect_refused(spillway_add_parameter(trainer, "weight", 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "\"weight\" already");
  expect_refused(spillway_add_parameter(trainer, "other", 2, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "\"other\"", "group 2", "2 were added");
  expect_refused(spillway_add_parameter(trainer, nullptr, 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "no name");
  expect_refused(spillway_add_parameter(trainer, "other", 0, nullptr, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "\"other\"", "null pointer");
  tensor.dtype = SPILLWAY_BF16;
  expect_refused(spillway_add_parameter(trainer, "other", 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "\"other\" is bf16", "fp32");
  tensor.dtype = SPILLWAY_FP32;
  const std::int64_t empty[] = {2, 0};
  tensor.shape = empty;
  expect_refused(spillway_add_parameter(trainer, "other", 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "[2, 0]");
  const std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  tensor.shape = huge;
  expect_refused(spillway_add_parameter(trainer, "other", 0, &tensor, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "[1099511627776, 1099511627776]");
  SPILLWAY_OK_(spillway_start(trainer, nullptr));
  expect_usable();
}

TEST_F(CMisuse, OptionsThatDoNotFitAreRefusedAndOthersTaken) {
  add_all();
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.host_memory = 1;
  EXPECT_EQ(spillway_start(trainer, &options), SPILLWAY_DOES_NOT_FIT) << spillway_last_message();
  options = SPILLWAY_OPTIONS_INIT;
  options.isa = 5;
  expect_refused(spillway_start(trainer, &options), SPILLWAY_INVALID_ARGUMENT, "isa is 5",
                 "0 to 4");
  options = SPILLWAY_OPTIONS_INIT;
  options.defers_updates = 2;
  expect_refused(spillway_start(trainer, &options), SPILLWAY_INVALID_ARGUMENT,
                 "defers_updates is 2");
  options = SPILLWAY_OPTIONS_INIT;
  options.nvme_count = 1;
  expect_refused(spillway_start(trainer, &options), SPILLWAY_INVALID_ARGUMENT, "nvme_count is 1");
  const std::string missing = (new_folder() / "missing").string();
  const char* paths[] = {missing.c_str()};
  options.nvme = paths;
  expect_refused(spillway_start(trainer, &options), SPILLWAY_INVALID_ARGUMENT, missing.c_str(),
                 "is not a directory; mount its drive or make it");
  EXPECT_FALSE(std::filesystem::exists(missing));
  SPILLWAY_OK_(spillway_start(trainer, nullptr));
  expect_usable();
}

TEST_F(CMisuse, GradientsThatAreNotTheParameters) {
  start_all();
  expect_refused(give_changed([](spillway_tensor& t) { t.dtype = SPILLWAY_BF16; }),
                 SPILLWAY_INVALID_ARGUMENT, "\"bias\"", "bf16", "fp32");
  expect_refused(give_changed([](spillway_tensor& t) { t.reserved = 7; }),
                 SPILLWAY_INVALID_ARGUMENT, "\"bias\"", "reserved 7, which must be 0");
  expect_refused(give_changed([](spillway_tensor& t) { t.dtype = 7; }), SPILLWAY_INVALID_ARGUMENT,
                 "\"bias\"", "dtype 7");
  const std::int64_t wrong[] = {4};
  expect_refused(give_changed([&](spillway_tensor& t) { t.shape = wrong; }),
                 SPILLWAY_INVALID_ARGUMENT, "\"bias\"", "[4]", "[5]");
  const std::int64_t folded[] = {5, 1};
  expect_refused(give_changed([&](spillway_tensor& t) {
                   t.shape = folded;
                   t.dimensions = 2;
                 }),
                 SPILLWAY_INVALID_ARGUMENT, "\"bias\"", "[5, 1]", "[5]");
  expect_refused(give_changed([](spillway_tensor& t) { t.dimensions = -1; }),
                 SPILLWAY_INVALID_ARGUMENT, "-1 dimensions");
  expect_refused(give_changed([](spillway_tensor& t) { t.shape = nullptr; }),
                 SPILLWAY_INVALID_ARGUMENT, "no shape");
  expect_refused(give_changed([](spillway_tensor& t) { t.data = nullptr; }),
                 SPILLWAY_INVALID_ARGUMENT, "its data at");
  expect_refused(give_changed([](spillway_tensor& t) { t.data = static_cast<char*>(t.data) + 1; }),
                 SPILLWAY_INVALID_ARGUMENT, "a multiple of 4");
  expect_refused(give(0, {}), SPILLWAY_INVALID_ARGUMENT, "\"weight\"");
  std::vector<float> gradient(5);
  const spillway_tensor tensor = tensor_of(std::span(gradient), shapes[1]);
  expect_refused(spillway_gradient_ready(trainer, 2, &tensor, SPILLWAY_READY_NOW, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "no parameter 2", "2 were added");
  expect_usable();
}

TEST_F(CMisuse, ATrainerOnTheHostTakesNoDeviceMemoryStreamsOrEvents) {
  start_all();
  expect_refused(give_changed([](spillway_tensor& t) { t.device = SPILLWAY_CUDA; }),
                 SPILLWAY_NOT_SUPPORTED, "\"bias\"", "device 2:0", "copy it to the host");
  std::vector<float> gradient(5);
  const spillway_tensor tensor = tensor_of(std::span(gradient), shapes[1]);
  int handle = 0;
  expect_refused(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_STREAM, &handle),
                 SPILLWAY_NOT_SUPPORTED, "a stream");
  expect_refused(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_EVENT, &handle),
                 SPILLWAY_NOT_SUPPORTED, "an event");
  expect_refused(spillway_gradient_ready(trainer, 1, &tensor, SPILLWAY_READY_NOW, &handle),
                 SPILLWAY_INVALID_ARGUMENT, "must be null");
  expect_refused(spillway_gradient_ready(trainer, 1, &tensor, 3, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "ready", "is 3");
  expect_refused(give_changed([](spillway_tensor& t) { t.device = 8; }), SPILLWAY_NOT_SUPPORTED,
                 "device 8:0", "memory of the host and of CUDA");
  spillway_step_options options = SPILLWAY_STEP_OPTIONS_INIT;
  options.ready = SPILLWAY_READY_STREAM;
  expect_refused(spillway_step(trainer, &options, nullptr), SPILLWAY_NOT_SUPPORTED, "the step",
                 "SPILLWAY_CUDA");
  expect_usable();
}

TEST_F(CMisuse, MissingAndSecondGradients) {
  start_all();
  SPILLWAY_OK_(give(0, {1, 1, 1, 1, 1, 1}));
  expect_refused(spillway_step(trainer, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT, "bias");
  expect_refused(give(0, {1, 1, 1, 1, 1, 1}), SPILLWAY_INVALID_ARGUMENT, "weight");
  SPILLWAY_OK_(give(1, {1, 1, 1, 1, 1}));
  SPILLWAY_OK_(spillway_step(trainer, nullptr, nullptr));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(values(1)[i], start[1][i] - 0.02F, 1e-6);
  // The gradients were those of that step: another step has none.
  expect_refused(spillway_step(trainer, nullptr, nullptr), SPILLWAY_INVALID_ARGUMENT, "weight");
  std::uint64_t steps = 0;
  SPILLWAY_OK_(spillway_get_steps(trainer, &steps, nullptr));
  EXPECT_EQ(steps, 1U);
}

TEST_F(CMisuse, HyperparametersOutsideTheirRanges) {
  start_all();
  spillway_group group = SPILLWAY_GROUP_INIT;
  SPILLWAY_OK_(spillway_get_group(trainer, 1, &group));
  EXPECT_EQ(group.lr, 0.02);
  group.lr = NAN;
  expect_refused(spillway_set_group(trainer, 1, &group), SPILLWAY_INVALID_ARGUMENT, "lr", "nan");
  group.lr = 0.5;
  group.optimizer = SPILLWAY_LION;
  EXPECT_EQ(spillway_set_group(trainer, 1, &group), SPILLWAY_INVALID_ARGUMENT);
  group.optimizer = 4;
  expect_refused(spillway_set_group(trainer, 1, &group), SPILLWAY_INVALID_ARGUMENT,
                 "optimizer is 4");
  expect_refused(spillway_set_group(trainer, 2, &group), SPILLWAY_INVALID_ARGUMENT, "no group 2");
  spillway_step_options options = SPILLWAY_STEP_OPTIONS_INIT;
  options.gradient_divisor = 0;
  SPILLWAY_OK_(give(0, {1, 1, 1, 1, 1, 1}));
  SPILLWAY_OK_(give(1, {1, 1, 1, 1, 1}));
  EXPECT_EQ(spillway_step(trainer, &options, nullptr), SPILLWAY_INVALID_ARGUMENT);
  expect_usable();
}

TEST_F(CMisuse, ArraysAndPathsForState) {
  start_all();
  std::vector<float> master(5);
  expect_refused(spillway_read_state(trainer, 1, 4, master.data(), nullptr, nullptr),
                 SPILLWAY_INVALID_ARGUMENT, "\"bias\"", "4 elements", "5");
  EXPECT_EQ(spillway_write_state(trainer, 1, 5, nullptr, nullptr, nullptr),
            SPILLWAY_INVALID_ARGUMENT);
  expect_refused(spillway_save(trainer, ""), SPILLWAY_INVALID_ARGUMENT, "directory is empty");
  expect_refused(spillway_write_trace(trainer, "trace"), SPILLWAY_INVALID_ARGUMENT, "traces");
  EXPECT_NE(spillway_load(trainer, "/nowhere/at/all"), SPILLWAY_OK);
  EXPECT_THAT(spillway_last_message(), HasSubstr("/nowhere/at/all"));
  expect_usable();
}

TEST_F(CMisuse, StructuresOfOtherHeaders) {
  struct Newer {
    spillway_group known = SPILLWAY_GROUP_INIT;
    std::uint64_t member = 0;
  } newer;
  newer.known.size = sizeof newer;
  SPILLWAY_OK_(spillway_add_group(trainer, &newer.known, nullptr));
  newer.member = 1;
  expect_refused(spillway_add_group(trainer, &newer.known, nullptr), SPILLWAY_NOT_SUPPORTED,
                 "behind byte 56");
  SPILLWAY_OK_(spillway_get_group(trainer, 0, &newer.known));
  EXPECT_EQ(newer.known.size, sizeof newer);
  EXPECT_EQ(newer.member, 0U);  // what the library does not know of is 0
  spillway_group older = SPILLWAY_GROUP_INIT;
  older.size = 48;
  expect_refused(spillway_add_group(trainer, &older, nullptr), SPILLWAY_INVALID_ARGUMENT,
                 "48 bytes", "INIT");
}

TEST_F(CMisuse, ChildrenOfTheProcess) {
  start_all();
  const pid_t child = fork();
  if (child == 0) {
    spillway_trainer* other = nullptr;
    const bool refused = spillway_step(trainer, nullptr, nullptr) == SPILLWAY_NOT_SUPPORTED &&
                         std::strstr(spillway_last_message(), "was forked") != nullptr &&
                         spillway_destroy(trainer) == SPILLWAY_NOT_SUPPORTED &&
                         spillway_create(&other) == SPILLWAY_NOT_SUPPORTED;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_usable();
}

TEST_F(CMisuse, TwoTrainersOnOneDisk) {
  const std::string folder = new_folder().string();
  const char* paths[] = {folder.c_str()};
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.nvme = paths;
  options.nvme_count = 1;
  start_all(&options);
  spillway_trainer* first = std::exchange(trainer, nullptr);
  SPILLWAY_OK_(spillway_create(&trainer));
  add_all();
  expect_refused(spillway_start(trainer, &options), SPILLWAY_BUSY, folder.c_str());
  SPILLWAY_OK_(spillway_destroy(first));
  SPILLWAY_OK_(spillway_start(trainer, &options));
  expect_usable();
}

/// Lets no file of this process grow beyond a size while it lives, as a full disk would.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(CMisuse, FullDisks) {
  const std::string folder = new_folder().string();
  const char* paths[] = {folder.c_str()};
  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.nvme = paths;
  options.nvme_count = 1;
  add_all();
  {
    const SmallFiles full(4096);
    expect_refused(spillway_start(trainer, &options), SPILLWAY_DOES_NOT_FIT, folder.c_str());
    EXPECT_EQ(spillway_last_native_code(), EFBIG);
  }
  SPILLWAY_OK_(spillway_start(trainer, &options));
  const std::string path = folder + "/checkpoint";
  {
    const SmallFiles full(4096);
    EXPECT_EQ(spillway_save(trainer, path.c_str()), SPILLWAY_DOES_NOT_FIT);
  }
  SPILLWAY_OK_(spillway_save(trainer, path.c_str()));
  expect_usable();
}

TEST_F(CMisuse, ExitDuringAStep) {
  // The child runs this test alone from its start, as a program of its own.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_during_a_step = [&] {
    start_all();
    std::atomic<int> steps = 0;
    std::thread([&] {
      for (;; ++steps) {
        if (give(0, start[0]) != 0 || give(1, start[1]) != 0) std::abort();
        if (spillway_step(trainer, nullptr, nullptr) != 0) std::abort();
      }
    }).detach();
    while (steps < 3) std::this_thread::yield();
    std::exit(3);
  };
  EXPECT_EXIT(exit_during_a_step(), testing::ExitedWithCode(3), "");
}

TEST_F(CMisuse, OneThreadAtATimeForTheRest) {
  start_all();
  std::atomic<bool> refused = false;
  const auto call = [&] {
    for (int i = 0; i < 10'000'000 && !refused; ++i) {
      const spillway_status status = spillway_get_steps(trainer, nullptr, nullptr);
      if (status == SPILLWAY_OK) continue;
      expect_refused(status, SPILLWAY_BUSY, "another thread");
      refused = true;
    }
  };
  std::thread other(call);
  call();
  other.join();
  EXPECT_TRUE(refused);
  expect_usable();
}

TEST_F(CMisuse, DestroyingWhatOthersUse) {
  start_all();
  std::atomic<bool> begun = false;
  std::thread other([&, name = trainer] {
    spillway_status status = SPILLWAY_OK;
    while (status == SPILLWAY_OK) {
      status = spillway_wait(name, 0);
      begun = true;
    }
    expect_refused(status, SPILLWAY_INVALID_ARGUMENT, "was destroyed");
  });
  while (!begun) std::this_thread::yield();
  spillway_status status = SPILLWAY_BUSY;
  while (status == SPILLWAY_BUSY) status = spillway_destroy(trainer);
  EXPECT_EQ(status, SPILLWAY_OK) << spillway_last_message();
  other.join();
  trainer = nullptr;
}

TEST_F(CMisuse, EachThreadHasItsOwnLastMessage) {
  EXPECT_NE(spillway_step(trainer, nullptr, nullptr), SPILLWAY_OK);
  std::thread([] { EXPECT_THAT(spillway_last_message(), StrEq("")); }).join();
  EXPECT_THAT(spillway_last_message(), HasSubstr("has not started"));
}

}  // namespace
}  // namespace spillway::capi_test::misuse_test
