// Trains a small network of bf16 parameters from C++20 through Spillway's C interface. Updates are
// deferred: each layer's update runs until that layer's next forward waits for it.
//
//   usage: train FOLDER [disk]      FOLDER: for the checkpoint and, with `disk`, the optimizer's
//   state
#include <spillway.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

void must(spillway_status status) {
  if (status != SPILLWAY_OK) throw std::runtime_error(spillway_last_message());
}

/// bfloat16: the upper half of a float.
using Bf16 = std::uint16_t;
float from_bf16(Bf16 bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
Bf16 to_bf16(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<Bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

struct Destroy {
  void operator()(spillway_trainer* trainer) const { spillway_destroy(trainer); }
};
using Trainer = std::unique_ptr<spillway_trainer, Destroy>;

Trainer make_trainer() {
  spillway_trainer* trainer = nullptr;
  must(spillway_create(&trainer));
  return Trainer(trainer);
}

spillway_tensor tensor_of(std::span<Bf16> data, std::span<const std::int64_t> shape) {
  spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
  tensor.dtype = SPILLWAY_BF16;
  tensor.data = data.data();
  tensor.shape = shape.data();
  tensor.dimensions = static_cast<std::int32_t>(shape.size());
  return tensor;
}

/// y = W [x, 1] with W [outputs, inputs + 1] in bf16, whose values the trainer keeps.
class Layer {
 public:
  Layer(std::string_view name, std::int64_t inputs, std::int64_t outputs, std::mt19937& random)
      : name_(name), shape_{outputs, inputs + 1} {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(inputs)));
    for (std::int64_t i = 0; i < outputs * (inputs + 1); ++i)
      start_.push_back(to_bf16(normal(random)));
    sum_.resize(start_.size());
  }

  void add_to(spillway_trainer* trainer) {
    const spillway_tensor tensor = tensor_of(start_, shape_);
    must(spillway_add_parameter(trainer, name_.c_str(), /*group=*/0, &tensor, &index_));
    trainer_ = trainer;
  }

  /// Waits for this layer's update, and for no other's.
  void begin_forward() {
    must(spillway_wait(trainer_, index_));
    spillway_tensor tensor = SPILLWAY_TENSOR_INIT;
    must(spillway_values(trainer_, index_, &tensor));
    values_ = {static_cast<const Bf16*>(tensor.data), start_.size()};
  }

  std::vector<float> forward(const std::vector<float>& x) const {
    std::vector<float> y(rows());
    for (std::size_t row = 0; row < rows(); ++row) {
      y[row] = weight(row, x.size());
      for (std::size_t i = 0; i < x.size(); ++i) y[row] += weight(row, i) * x[i];
    }
    return y;
  }

  /// Adds to the gradient of W, and returns that of x.
  std::vector<float> backward(const std::vector<float>& x, const std::vector<float>& dy) {
    std::vector<float> dx(x.size());
    for (std::size_t row = 0; row < rows(); ++row) {
      float* sum = &sum_[row * (x.size() + 1)];
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum[i] += dy[row] * x[i];
        dx[i] += dy[row] * weight(row, i);
      }
      sum[x.size()] += dy[row];
    }
    return dx;
  }

  /// Hands over the gradient of the step and begins the next one.
  void end_backward() {
    std::vector<Bf16> gradient;
    for (float& sum : sum_) gradient.push_back(to_bf16(std::exchange(sum, 0.0F)));
    const spillway_tensor tensor = tensor_of(gradient, shape_);
    must(spillway_gradient_ready(trainer_, index_, &tensor, SPILLWAY_READY_NOW, nullptr));
  }

 private:
  std::size_t rows() const { return static_cast<std::size_t>(shape_[0]); }
  float weight(std::size_t row, std::size_t column) const {
    return from_bf16(values_[row * static_cast<std::size_t>(shape_[1]) + column]);
  }

  std::string name_;
  std::array<std::int64_t, 2> shape_;
  std::vector<Bf16> start_;
  std::vector<float> sum_;
  std::span<const Bf16> values_;
  spillway_trainer* trainer_ = nullptr;
  std::uint32_t index_ = 0;
};

constexpr int kSide = 16;
constexpr int kPoints = kSide * kSide;
constexpr int kSteps = 300;

/// Runs forward and backward over the grid's points, and returns the mean squared error against
/// sin(3 a) b.
double forward_and_backward(Layer& first, Layer& second) {
  double loss = 0;
  first.begin_forward();
  second.begin_forward();
  for (int point = 0; point < kPoints; ++point) {
    const std::vector<float> x{static_cast<float>(point / kSide) / (kSide - 1) * 2 - 1,
                               static_cast<float>(point % kSide) / (kSide - 1) * 2 - 1};
    std::vector<float> hidden = first.forward(x);
    for (float& h : hidden) h = std::tanh(h);
    const float error = second.forward(hidden)[0] - std::sin(3 * x[0]) * x[1];
    loss += static_cast<double>(error) * error / kPoints;
    std::vector<float> slope = second.backward(hidden, {2 * error / kPoints});
    for (std::size_t i = 0; i < slope.size(); ++i) slope[i] *= 1 - hidden[i] * hidden[i];
    first.backward(x, slope);
  }
  second.end_backward();
  first.end_backward();
  return loss;
}

void print_counters(spillway_trainer* trainer) {
  spillway_lane_row row = SPILLWAY_LANE_ROW_INIT;
  for (std::uint32_t i = 0;; ++i) {
    must(spillway_get_lane(trainer, i, &row));
    if (row.lane == nullptr) return;
    std::printf("lane %s: %llu bytes, %.6f s in the last step\n", row.lane,
                static_cast<unsigned long long>(row.bytes), row.seconds);
  }
}

int run(const std::string& folder, bool on_disk) {
  std::mt19937 random(1);
  Layer first("first", 2, 64, random), second("second", 64, 1, random);
  const Trainer trainer = make_trainer();
  spillway_group group = SPILLWAY_GROUP_INIT;
  group.lr = 0.02;
  must(spillway_add_group(trainer.get(), &group, nullptr));
  first.add_to(trainer.get());
  second.add_to(trainer.get());

  spillway_options options = SPILLWAY_OPTIONS_INIT;
  options.state_format = SPILLWAY_STATE_SPLIT;
  options.defers_updates = 1;
  options.threads = 2;
  const char* path = folder.c_str();
  if (on_disk) {
    options.nvme = &path;
    options.nvme_count = 1;
  }
  must(spillway_start(trainer.get(), &options));

  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    loss = forward_and_backward(first, second);
    group.lr = 0.02 * (kSteps - step) / kSteps;
    must(spillway_set_group(trainer.get(), 0, &group));
    spillway_step_result result = SPILLWAY_STEP_RESULT_INIT;
    must(spillway_step(trainer.get(), nullptr, &result));
    if (step % 100 == 0) std::printf("step %d: loss %.6f\n", step + 1, loss);
  }
  std::printf("loss %.6f after %d steps\n", loss, kSteps);
  must(spillway_save(trainer.get(), (folder + "/checkpoint").c_str()));
  print_counters(trainer.get());
  return loss < 0.01 ? 0 : 1;  // it starts at about 0.25
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: train FOLDER [disk]\n");
    return 2;
  }
  try {
    return run(arguments[1], count > 2 && std::string_view(arguments[2]) == "disk");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
