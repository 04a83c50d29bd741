// Every call of the C interface, with every allocation and every call of the C library on files
// failing: what fails says so, and can be tried again, or is refused until the trainer is made
// anew. What has worked in the end has the bits of a run without a fault.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <type_traits>

#include "tests/capi/fixture.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/environment.hpp"
#include "tests/support/failing_file_call.hpp"

namespace spillway::capi_test::failing_calls_test {
namespace {

using test_support::FailingAllocation;
using test_support::FailingFileCall;

/// What a scenario came to.
struct Outcome {
  std::vector<float> numbers;  ///< that the trainer gave at the end; none: it was refused
  bool failed = false;         ///< the call has, whose turn it was
  std::string calls;           ///< of the interface that returned an error
};

/// `Fault`: FailingAllocation or FailingFileCall.
template <class Fault>
class Scenario {
 public:
  Scenario(std::int64_t successes, const std::filesystem::path& folder, bool on_disk)
      : fault_(successes), folder_(folder), on_disk_(on_disk) {}
  ~Scenario() { EXPECT_EQ(spillway_destroy(trainer_), SPILLWAY_OK) << spillway_last_message(); }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  Outcome run() {
    if (set_up() && train(1) && train(2) && keep() && train(3)) read();
    return {numbers_, fault_.has_failed(), calls_};
  }

 private:
  /// Makes a call that may fail once, and another time if it has.
  bool succeeds(const char* name, const std::function<spillway_status()>& call) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      fault_.watch(true);
      const spillway_status status = call();
      fault_.watch(false);
      if (status == SPILLWAY_OK) return true;
      EXPECT_TRUE(fault_.has_failed()) << name << ": " << spillway_last_message();
      EXPECT_STRNE(spillway_last_message(), "") << name;
      if (attempt == 0) expect_cause(name, status);
      calls_ += std::string(name) + ": " + spillway_last_message() + "\n";
    }
    return false;
  }

  static void expect_cause(const char* name, spillway_status status) {
    if constexpr (std::is_same_v<Fault, FailingAllocation>) {
      EXPECT_EQ(status, SPILLWAY_OUT_OF_MEMORY) << name << ": " << spillway_last_message();
    } else {
      EXPECT_EQ(spillway_last_native_code(), EIO) << name << ": " << spillway_last_message();
    }
  }

  bool set_up() {
    if (!succeeds("create", [&] { return spillway_create(&trainer_); })) return false;
    spillway_group group = SPILLWAY_GROUP_INIT;
    group.lr = 0.01;
    if (!succeeds("add_group", [&] { return spillway_add_group(trainer_, &group, nullptr); })) {
      return false;
    }
    for (std::uint32_t i = 0; i < start_.size(); ++i) {
      const std::string name = "parameter " + std::to_string(i);
      const spillway_tensor tensor = tensor_of(std::span(start_[i]), shape_);
      if (!succeeds("add_parameter", [&] {
            return spillway_add_parameter(trainer_, name.c_str(), 0, &tensor, nullptr);
          })) {
        return false;
      }
    }
    std::filesystem::create_directory(folder_ / "disk");
    const std::string disk = (folder_ / "disk").string();
    const char* paths[] = {disk.c_str()};
    spillway_options options = SPILLWAY_OPTIONS_INIT;
    options.threads = 1;
    options.nvme = paths;
    options.nvme_count = on_disk_ ? 1 : 0;
    return succeeds("start", [&] { return spillway_start(trainer_, &options); });
  }

  bool train(int step) {
    for (std::uint32_t i = 0; i < start_.size(); ++i) {
      std::vector<float> gradient(start_[i].size());
      for (std::size_t k = 0; k < gradient.size(); ++k) {
        gradient[k] = static_cast<float>(std::sin(step * 7 + static_cast<double>(i * 3 + k)));
      }
      const spillway_tensor tensor = tensor_of(std::span(gradient), shape_);
      if (!succeeds("gradient_ready", [&] {
            return spillway_gradient_ready(trainer_, i, &tensor, SPILLWAY_READY_NOW, nullptr);
          })) {
        return false;
      }
    }
    return succeeds("step", [&] { return spillway_step(trainer_, nullptr, nullptr); }) &&
           succeeds("synchronize", [&] { return spillway_synchronize(trainer_); });
  }

  /// Saves, loads what was saved, and writes back the state of a parameter.
  bool keep() {
    const std::string checkpoint = (folder_ / "checkpoint").string();
    std::vector<float> master(kElements), m(kElements), v(kElements);
    return succeeds("save", [&] { return spillway_save(trainer_, checkpoint.c_str()); }) &&
           succeeds("load", [&] { return spillway_load(trainer_, checkpoint.c_str()); }) &&
           succeeds("read_state",
                    [&] {
                      return spillway_read_state(trainer_, 1, kElements, master.data(), m.data(),
                                                 v.data());
                    }) &&
           succeeds("write_state",
                    [&] {
                      return spillway_write_state(trainer_, 1, kElements, master.data(), m.data(),
                                                  v.data());
                    }) &&
           succeeds("values_changed", [&] { return spillway_values_changed(trainer_, 0); });
  }

  void read() {
    for (std::uint32_t i = 0; i < start_.size(); ++i) {
      spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
      ASSERT_EQ(spillway_values(trainer_, i, &tensor), SPILLWAY_OK);
      const auto* values = static_cast<const float*>(tensor.data);
      numbers_.insert(numbers_.end(), values, values + kElements);
      std::vector<float> state(3 * kElements);
      ASSERT_EQ(spillway_read_state(trainer_, i, kElements, state.data(), state.data() + kElements,
                                    state.data() + 2 * kElements),
                SPILLWAY_OK)
          << spillway_last_message();
      numbers_.insert(numbers_.end(), state.begin(), state.end());
    }
  }

  static constexpr std::size_t kElements = 6;

  Fault fault_;
  const std::filesystem::path folder_;
  const bool on_disk_;
  spillway_trainer* trainer_ = nullptr;
  std::vector<std::int64_t> shape_{2, 3};
  std::vector<std::vector<float>> start_{{1, -2, 3, -4, 5, -6}, {0.5F, 0, -0.5F, 2, 4, 1}};
  std::vector<float> numbers_;
  std::string calls_;
};

class FailingCalls : public testing::Test {
 protected:
  /// Lets each call of a scenario fail in turn, or one of so many.
  template <class Fault>
  void fail_in_turn(bool on_disk, std::int64_t usual_stride) {
    const Outcome undisturbed = outcome<Fault>(INT64_MAX, on_disk);
    ASSERT_FALSE(undisturbed.numbers.empty());
    int refused = 0;
    // Some of thousands, or all that the environment asks for.
    const char* all = std::getenv("SPILLWAY_TEST_ALL_CALLS");
    const std::int64_t every = all != nullptr ? 1 : usual_stride;
    std::int64_t successes = static_cast<std::int64_t>(test_support::test_seed()) % every;
    for (;; successes += every) {
      SCOPED_TRACE(successes);
      const Outcome one = outcome<Fault>(successes, on_disk);
      if (!one.failed || HasFailure()) break;
      if (one.numbers.empty()) {
        ++refused;
      } else {
        EXPECT_EQ(one.numbers, undisturbed.numbers) << one.calls;
      }
    }
    EXPECT_GT(successes, 20);
    RecordProperty("faults", std::to_string(successes));
    RecordProperty("refused", refused);
  }

 private:
  template <class Fault>
  Outcome outcome(std::int64_t successes, bool on_disk) {
    const auto folder = new_folder();
    return Scenario<Fault>(successes, folder, on_disk).run();
  }
};

TEST_F(FailingCalls, OfOperatorNewAreToldAndLeaveNoMixture) {
  fail_in_turn<FailingAllocation>(false, 29);
  fail_in_turn<FailingAllocation>(true, 61);
}

TEST_F(FailingCalls, OnFilesAreToldAndLeaveNoMixture) {
  fail_in_turn<FailingFileCall>(false, 1);
  fail_in_turn<FailingFileCall>(true, 1);
}

}  // namespace
}  // namespace spillway::capi_test::failing_calls_test
