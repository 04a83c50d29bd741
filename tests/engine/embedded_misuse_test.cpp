// What an embedded trainer refuses, says and survives.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <thread>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_misuse_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Call>
void expect_error(const Call& call, ErrorCode code, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(name_of(error.code()), name_of(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST_F(EmbeddedTrainerTest, SkipsAStepWithAGradientThatIsNotFinite) {
  const auto trainer = make(options_for());
  train(*trainer, 1, 2);
  const auto before = image(*trainer);
  const auto state_before = state(*trainer);
  backward(*trainer, 3);
  // The last gradient comes again, with a hole in it.
  trainer->discard_gradients();
  for (std::size_t i = 1; i < model_.sizes.size(); ++i) give(*trainer, i, 3);
  Tensor broken = model_.gradient(0, 3);
  broken[1] = std::numeric_limits<float>::infinity();
  trainer->add_gradient(0, bytes_of(broken));
  const EmbeddedResult result = trainer->step({});
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.step, 3U);
  EXPECT_EQ(trainer->updates(), 2U);
  EXPECT_TRUE(image(*trainer) == before);
  EXPECT_EQ(state(*trainer), state_before);
}

TEST_F(EmbeddedTrainerTest, GoesOnAfterMisuse) {
  const auto trainer = make(options_for());
  const auto reference = make(options_for());
  expect_error([&] { static_cast<void>(trainer->step({})); }, ErrorCode::invalid_argument,
               "\"layer.0\" has 0 of the 1");
  give(*trainer, 1, 1);
  expect_error([&] { static_cast<void>(give(*trainer, 1, 1)); }, ErrorCode::invalid_argument,
               "\"layer.1\" has had 1 of its 1");
  expect_error([&] { static_cast<void>(trainer->add_gradient(0, {})); },
               ErrorCode::invalid_argument, "0 bytes; 3 elements");
  expect_error([&] { static_cast<void>(trainer->add_gradient(9, {})); },
               ErrorCode::invalid_argument, "no parameter 9");
  expect_error([&] { static_cast<void>(trainer->load(directory_.path() / "x")); },
               ErrorCode::invalid_argument, "gradients of this step are there");
  expect_error([&] { static_cast<void>(trainer->step({.gradient_divisor = 0})); },
               ErrorCode::invalid_argument, "above 0");
  for (const std::size_t i : {0U, 2U, 3U, 4U}) give(*trainer, i, 1);
  static_cast<void>(trainer->grad_norm());
  expect_error([&] { static_cast<void>(give(*trainer, 1, 1)); }, ErrorCode::invalid_argument,
               "comes after grad_norm");
  trainer->step({});
  expect_error([&] { static_cast<void>(trainer->set_group(2, {})); }, ErrorCode::invalid_argument,
               "there is no group 2");
  expect_error([&] { static_cast<void>(trainer->set_group(0, {.lr = -1})); },
               ErrorCode::invalid_argument, "lr");
  backward(*reference, 1);
  reference->step({});
  EXPECT_TRUE(train(*trainer, 2, 3) == train(*reference, 2, 3));
}

TEST_F(EmbeddedTrainerTest, AStepThatIsRefusedCountsNowhere) {
  const auto trainer = make(options_for());
  const auto reference = make(options_for());
  train(*trainer, 1, 2);
  train(*reference, 1, 2);
  backward(*trainer, 3);
  for (const double divisor : {-1.0, 0.0, 1e-310, 1e-39, 1e39, kInfinity, std::nan("")}) {
    expect_error([&] { trainer->step({.gradient_divisor = divisor}); }, ErrorCode::invalid_argument,
                 "gradient_divisor is");
    EXPECT_EQ(trainer->steps(), 2U);
    EXPECT_EQ(trainer->updates(), 2U);
  }
  trainer->step({.gradient_divisor = 2, .max_norm = 1});
  EXPECT_TRUE(image(*trainer) == train(*reference, 3, 3));
  trainer->set_updates(std::numeric_limits<std::uint64_t>::max());
  backward(*trainer, 4);
  expect_error([&] { trainer->step({}); }, ErrorCode::invalid_argument, "18446744073709551615");
  EXPECT_EQ(trainer->steps(), 3U);
  EXPECT_EQ(trainer->updates(), std::numeric_limits<std::uint64_t>::max());
  trainer->discard_gradients();
  trainer->set_updates(3);
  EXPECT_TRUE(train(*trainer, 4, 5) == train(*reference, 4, 5));
}

TEST_F(EmbeddedTrainerTest, ADivisorThatMakesGradientsOverflowSkipsTheStepUnlessTheyAreClipped) {
  const auto trainer = make(options_for());
  const auto before = image(*trainer);
  backward(*trainer, 1);
  EXPECT_TRUE(trainer->step({.gradient_divisor = 1e-38}).skipped);
  EXPECT_TRUE(image(*trainer) == before);
  backward(*trainer, 1);
  EXPECT_FALSE(trainer->step({.gradient_divisor = 1e-38, .max_norm = 1}).skipped);
  EXPECT_FALSE(image(*trainer) == before);
  const std::vector<float> after = state(*trainer);
  EXPECT_TRUE(std::ranges::all_of(after, [](float value) { return std::isfinite(value); }));
}

TEST_F(EmbeddedTrainerTest, AStepMayHaveMoreGradientsThan32BitsCount) {
  EmbeddedOptions options = options_for();
  options.gradients_per_step = (1U << 31) + 1;  // of two parameters: 2 in 32 bits
  options.missing_gradient = MissingGradient::zero;
  const Tensor ones(10, 1.0F);
  const EmbeddedParameter first{.name = "0", .elements = 10, .values = bytes_of(ones).data()};
  EmbeddedParameter second = first;
  second.name = "1";
  EmbeddedTrainer trainer(options, std::vector{first, second});
  for (int round = 0; round < 2; ++round) {
    for (const std::uint32_t i : {0U, 1U}) trainer.add_gradient(i, bytes_of(ones));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for norms that begin too soon
  }
  EXPECT_DOUBLE_EQ(trainer.grad_norm(), std::sqrt(20 * 4.0));
}

TEST_F(EmbeddedTrainerTest, TakesZerosForMissingGradientsWhereAsked) {
  EmbeddedOptions options = options_for();
  options.missing_gradient = MissingGradient::zero;
  const auto trainer = make(options);
  const auto reference = make(options_for());
  for (int step = 1; step <= 3; ++step) {
    for (std::size_t i = 1; i < model_.sizes.size(); ++i) {
      give(*trainer, i, step);
      give(*reference, i, step);
    }
    reference->add_gradient(0, bytes_of(Tensor(model_.sizes[0])));
    trainer->step({});
    reference->step({});
  }
  EXPECT_TRUE(image(*trainer) == image(*reference));
}

TEST_F(EmbeddedTrainerTest, RefusesWhatItCannotBeMadeOf) {
  const auto starts = model_.starts(DType::fp32);
  auto parameters = model_.parameters(starts);
  parameters[1].name = parameters[0].name;
  expect_error([&] { static_cast<void>(EmbeddedTrainer(options_for(), parameters)); },
               ErrorCode::invalid_argument, "two parameters are named \"layer.0\"");
  parameters[1].name = "layer.\xff";
  expect_error([&] { static_cast<void>(EmbeddedTrainer(options_for(), parameters)); },
               ErrorCode::invalid_argument, "\"layer.\xef\xbf\xbd\" is not UTF-8");
  parameters = model_.parameters(starts);
  parameters[2].group = 2;
  expect_error([&] { static_cast<void>(EmbeddedTrainer(options_for(), parameters)); },
               ErrorCode::invalid_argument, "is of group 2; there are 2");
  expect_error([&] { static_cast<void>(EmbeddedTrainer(options_for(), {})); },
               ErrorCode::invalid_argument, "nothing to train");
  EmbeddedOptions options = options_for();
  options.state_format = StateFormat::split;
  expect_error([&] { static_cast<void>(make(options)); }, ErrorCode::invalid_argument, "split");
  options = options_for();
  options.host_memory = 64_KiB;
  expect_error([&] { static_cast<void>(make(options)); }, ErrorCode::does_not_fit, "64.0 KiB");
  options = options_for();
  options.threads = 4097;
  expect_error([&] { static_cast<void>(make(options)); }, ErrorCode::invalid_argument,
               "4097 update threads");
}

TEST_F(EmbeddedTrainerTest, RefusesAFolderThatAnotherTrainerHas) {
  EmbeddedOptions options = options_for();
  options.nvme = {directory_.path()};
  const auto first = make(options);
  expect_error([&] { static_cast<void>(make(options)); }, ErrorCode::busy,
               directory_.path().string());
  train(*first, 1, 1);
}

TEST_F(EmbeddedTrainerTest, RefusesACheckpointOfOthersAndOneThatIsNotWhole) {
  const auto trainer = make(options_for());
  expect_error([&] { static_cast<void>(trainer->load(directory_.path())); },
               ErrorCode::invalid_argument, "no checkpoint");
  const auto looped = directory_.path() / "parameters.json";
  std::filesystem::create_symlink(looped, looped);
  expect_error([&] { static_cast<void>(trainer->load(directory_.path())); }, ErrorCode::io_error,
               "parameters.json: Too many");
  trainer->save(directory_.path() / "a");
  expect_error([&] { static_cast<void>(trainer->save(directory_.path() / "a")); },
               ErrorCode::invalid_argument, "there already");
  model_.sizes[1] = 4999;
  const auto other = make(options_for());
  expect_error([&] { static_cast<void>(other->load(directory_.path() / "a")); },
               ErrorCode::invalid_argument, "other parameters: number 1");
  const auto damaged = make(options_for(DType::bf16));
  expect_error([&] { static_cast<void>(damaged->load(directory_.path() / "a")); },
               ErrorCode::invalid_argument, "dtype");
}

TEST_F(EmbeddedTrainerTest, RefusesToSaveMoreThanItCouldLoad) {
  const auto starts = model_.starts(DType::fp32);
  auto parameters = model_.parameters(starts);
  EmbeddedTrainer trainer(options_for(), parameters);
  for (EmbeddedParameter& parameter : parameters) parameter.name += std::string(4U << 20, 'x');
  EmbeddedTrainer of_long_names(options_for(), parameters);  // of 20 MiB
  train(trainer, 1, 1);
  train(of_long_names, 1, 1);
  const auto path = directory_.path() / "checkpoint";
  expect_error([&] { of_long_names.save(path); }, ErrorCode::invalid_argument,
               "at most 16777216 can be read again");
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(train(of_long_names, 2, 2) == train(trainer, 2, 2));
}

/// Lets no file of this process grow beyond some bytes, as on a disk that is full.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(EmbeddedTrainerTest, GoesOnAfterADiskThatWasFull) {
  const auto trainer = make(options_for());
  const auto reference = make(options_for());
  train(*trainer, 1, 2);
  const auto path = directory_.path() / "checkpoint";
  {
    const FileLimit full(64 << 10);
    EmbeddedOptions on_disk = options_for();
    on_disk.nvme = {directory_.path()};
    expect_error([&] { make(on_disk); }, ErrorCode::does_not_fit, directory_.path().string());
    expect_error([&] { trainer->save(path); }, ErrorCode::does_not_fit, path.string());
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  trainer->save(path);
  EXPECT_TRUE(train(*trainer, 3, 4) == train(*reference, 1, 4));
  reference->load(path);
  EXPECT_EQ(reference->steps(), 2U);
}

TEST_F(EmbeddedTrainerTest, SaysInAForkedChildThatItIsTheParents) {
  const auto trainer = make(options_for());
  give(*trainer, 0, 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool refused = false;
    try {
      static_cast<void>(trainer->step({}));
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::not_supported;
    }
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace spillway::engine::embedded_misuse_test
