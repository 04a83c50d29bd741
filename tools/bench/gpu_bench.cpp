#include "tools/bench/gpu_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "offload/memory.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/topology.hpp"
#include "runtime/engine/device/compute_device.hpp"
#include "runtime/engine/machine/timing.hpp"

namespace spillway::bench {
namespace {

using config::DeviceKind;
using offload::DeviceMemory;
using offload::PinnedMemory;

constexpr int kRepetitions = 3;

/// Seconds of one call: as many in a row as fill a third of `budget`, the best of three such rows.
double seconds_of(offload::Stream& stream, double budget, const std::function<void()>& call) {
  const auto timed = [&](std::uint64_t calls) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < calls; ++i) call();
    stream.synchronize();
    return seconds_since(begin);
  };
  timed(1);
  const double once = std::max(timed(1), 1e-6);
  const auto calls = static_cast<std::uint64_t>(std::clamp(budget / 3 / once, 1.0, 500.0));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepetitions; ++i) best = std::min(best, timed(calls));
  return best / static_cast<double>(calls);
}

class Device {
 public:
  explicit Device(const GpuCase& shapes) : shapes_(shapes) {
    options_.device = shapes.device;
    options_.compute = shapes.compute;
    options_.compute_threads = shapes.compute_threads;
    options_.deterministic = shapes.deterministic;
    warm_ = shapes.device != DeviceKind::cuda;
    if (options_.compute_threads == 0) {
      options_.compute_threads = static_cast<std::uint32_t>(read_topology().cores.size());
    }
    if (options_.device == DeviceKind::cuda) options_.device_generation = engine::generation_of(0);
    ops_ = engine::make_ops(options_);
    backend_ = engine::make_backend(
        options_, {.device = plan::kUncounted, .host = plan::kUncounted, .nvme = {}}, nullptr);
    stream_ = backend_->make_stream("compute");
    ops_->bind_stream(stream_->native());
  }

  [[nodiscard]] model::Ops& ops() { return *ops_; }
  [[nodiscard]] offload::DeviceBackend& backend() { return *backend_; }
  [[nodiscard]] offload::Stream& stream() { return *stream_; }
  [[nodiscard]] std::string attention_engines() const {
    return engine::record_of(options_, *ops_).attention;
  }
  /// Repeats `work` for half a second, the first time and on a GPU only.
  void warm_up(const std::function<void()>& work) {
    if (!warm_) {
      engine::warm_up([&] {
        work();
        stream_->synchronize();
      });
    }
    warm_ = true;
  }
  [[nodiscard]] std::size_t element() const { return size_of(shapes_.compute); }

  /// Elements of the compute dtype between -1/8 and 1/8, the same for the same `seed`.
  [[nodiscard]] DeviceMemory random(std::uint64_t count, std::uint64_t seed) {
    DeviceMemory memory(*backend_, Bytes{count * element()});
    const PinnedMemory source(*backend_, memory.size());
    for (std::uint64_t i = 0; i < count; ++i) {
      store(source.host().data() + i * element(), value(seed, i));
    }
    stream_->upload(memory.device(), source.host());
    stream_->synchronize();
    return memory;
  }
  /// As `random` fills it: a multiple of 2^-10, exact in every dtype.
  [[nodiscard]] static float value(std::uint64_t seed, std::uint64_t index) {
    std::uint64_t x = (index + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 29;
    return static_cast<float>(static_cast<std::int64_t>(x % 255) - 127) / 1024.0F;
  }
  void store(std::byte* target, float value) const {
    if (shapes_.compute == DType::fp32) {
      std::memcpy(target, &value, sizeof value);
    } else {
      const std::uint16_t bits = shapes_.compute == DType::bf16 ? to_bf16(value) : to_fp16(value);
      std::memcpy(target, &bits, sizeof bits);
    }
  }

 private:
  const GpuCase& shapes_;
  config::TrainOptions options_;
  std::unique_ptr<model::Ops> ops_;
  std::unique_ptr<offload::DeviceBackend> backend_;
  std::unique_ptr<offload::Stream> stream_;
  bool warm_ = false;
};

struct Product {
  std::string name;
  model::GemmShape shape;
};

/// out = op(a) op(b), checked at a few places against the sum in fp64.
ProductRate measure(Device& device, const Product& product, double budget) {
  const model::GemmShape& s = product.shape;
  const model::GemmPlan plan = device.ops().plan_gemm(s);
  const DeviceMemory a = device.random(s.rows * s.inner, 1);
  const DeviceMemory b = device.random(s.inner * s.columns, 2);
  const DeviceMemory out(device.backend(), Bytes{s.rows * s.columns * sizeof(float)});
  const DeviceMemory workspace(device.backend(), std::max(plan.workspace, Bytes{1}));
  const bool wide = s.output != model::GemmOutput::compute;
  const std::size_t element = wide ? sizeof(float) : device.element();
  model::GemmArguments arguments;
  arguments.a = a.device();
  arguments.b = b.device();
  arguments.out = out.device().subspan(0, s.rows * s.columns * element);
  arguments.workspace = workspace.device();
  const auto call = [&] { device.stream().submit([&] { device.ops().gemm(plan, arguments); }); };
  ProductRate rate{.name = product.name, .rows = s.rows, .columns = s.columns, .inner = s.inner};
  device.warm_up(call);
  rate.seconds = seconds_of(device.stream(), budget, call);
  rate.flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.columns) *
               static_cast<double>(s.inner);
  if (!wide) return rate;  // the same product with an fp32 result is among those measured
  const PinnedMemory row(device.backend(), Bytes{s.columns * sizeof(float)});
  const std::uint64_t r = s.rows / 2;
  device.stream().download(row.host(), out.device().subspan(r * s.columns * 4, s.columns * 4));
  device.stream().synchronize();
  for (const std::uint64_t c : {std::uint64_t{0}, s.columns / 3, s.columns - 1}) {
    double sum = 0;
    for (std::uint64_t i = 0; i < s.inner; ++i) {
      sum +=
          static_cast<double>(Device::value(1, s.transpose_a ? i * s.rows + r : r * s.inner + i)) *
          static_cast<double>(
              Device::value(2, s.transpose_b ? c * s.inner + i : i * s.columns + c));
    }
    float found = 0;
    std::memcpy(&found, row.host().data() + c * sizeof(float), sizeof found);
    // Products of multiples of 2^-10 are exact in fp32; their sum is rounded at most `inner` times.
    const double bound = 1e-6 * std::sqrt(static_cast<double>(s.inner)) + 1e-6;
    check(
        std::abs(found - sum) <= bound, ErrorCode::internal,
        fmt::format("{}: element ({}, {}) is {} and should be {}", product.name, r, c, found, sum));
  }
  return rate;
}

std::vector<Product> products_of(const GpuCase& g) {
  const std::uint64_t qkv = std::uint64_t{g.heads + 2 * g.kv_heads} * g.head_dim;
  const std::uint64_t attention = std::uint64_t{g.heads} * g.head_dim;
  struct Weight {
    const char* name;
    std::uint64_t rows, in, out;
  };
  const std::array<Weight, 5> weights{{{"qkv", g.sequence, g.width, qkv},
                                       {"attention out", g.sequence, attention, g.width},
                                       {"gate and up", g.sequence, g.width, 2ULL * g.ffn},
                                       {"down", g.sequence, g.ffn, g.width},
                                       {"head chunk", g.head_rows, g.width, g.vocabulary}}};
  std::vector<Product> products;
  for (const Weight& w : weights) {
    const bool logits = w.out == g.vocabulary;
    products.push_back({fmt::format("{} forward", w.name),
                        {.rows = w.rows,
                         .columns = w.out,
                         .inner = w.in,
                         .transpose_b = true,
                         .output = logits ? model::GemmOutput::fp32 : model::GemmOutput::compute}});
    products.push_back({fmt::format("{} input gradient", w.name),
                        {.rows = w.rows, .columns = w.in, .inner = w.out}});
    products.push_back({fmt::format("{} weight gradient", w.name),
                        {.rows = w.out,
                         .columns = w.in,
                         .inner = w.rows,
                         .transpose_a = true,
                         .output = model::GemmOutput::gradient}});
  }
  return products;
}

/// One window of attention, on rows of q | k | v as a layer has them.
class AttentionBench {
 public:
  AttentionBench(Device& device, const GpuCase& g)
      : device_(device), shapes_(g), plan_(device.ops().plan_attention(shape())) {
    const std::uint64_t tokens = g.sequence;
    qkv_ = device.random(tokens * all(), 3);
    out_gradient_ = device.random(tokens * q_columns(), 4);
    out_ = {device.backend(), out_gradient_.size()};
    gradient_ = {device.backend(), qkv_.size()};
    sums_ = {device.backend(), Bytes{tokens * g.heads * sizeof(float)}};
    workspace_ = {device.backend(), std::max(plan_.workspace, Bytes{1})};
  }

  [[nodiscard]] std::vector<ProductRate> measure() {
    const auto tokens = static_cast<double>(shapes_.sequence);
    // Two products of [tokens, head_dim] a head, of whose results the causal half counts; five in
    // backward.
    const double flops = 2.0 * tokens * tokens * static_cast<double>(q_columns());
    std::vector<ProductRate> rates{
        rate("attention forward", flops,
             [this] { device_.ops().attention_forward(plan_, forward()); }),
        rate("attention backward", 2.5 * flops,
             [this] { device_.ops().attention_backward(plan_, backward()); })};
    check_first_token();
    return rates;
  }

 private:
  [[nodiscard]] std::uint64_t q_columns() const {
    return std::uint64_t{shapes_.heads} * shapes_.head_dim;
  }
  [[nodiscard]] std::uint64_t kv_columns() const {
    return std::uint64_t{shapes_.kv_heads} * shapes_.head_dim;
  }
  [[nodiscard]] std::uint64_t all() const { return q_columns() + 2 * kv_columns(); }

  [[nodiscard]] model::AttentionShape shape() const {
    model::AttentionShape shape;
    shape.batch = 1;
    shape.sequence = shapes_.sequence;
    shape.heads = shapes_.heads;
    shape.kv_heads = shapes_.kv_heads;
    shape.head_dim = shapes_.head_dim;
    shape.strides = {.q = all(),
                     .k = all(),
                     .v = all(),
                     .out = q_columns(),
                     .q_gradient = all(),
                     .k_gradient = all(),
                     .v_gradient = all()};
    return shape;
  }

  template <class View>
  [[nodiscard]] model::HeadRows<View> columns(View rows, std::uint64_t first) const {
    const std::uint64_t skipped = first * device_.element();
    return {rows.subspan(skipped, rows.size() - skipped), all()};
  }

  [[nodiscard]] model::AttentionForwardArguments forward() const {
    const model::ConstTensor rows = qkv_.device();
    model::AttentionForwardArguments arguments;
    arguments.q = columns(rows, 0);
    arguments.k = columns(rows, q_columns());
    arguments.v = columns(rows, q_columns() + kv_columns());
    arguments.out = {out_.device(), q_columns()};
    arguments.log_sum = sums_.device().as<float>();
    arguments.workspace = workspace_.device();
    return arguments;
  }

  [[nodiscard]] model::AttentionBackwardArguments backward() const {
    const model::AttentionForwardArguments before = forward();
    const model::Tensor rows = gradient_.device();
    model::AttentionBackwardArguments arguments;
    arguments.q = before.q;
    arguments.k = before.k;
    arguments.v = before.v;
    arguments.out = {out_.device(), q_columns()};
    arguments.out_gradient = {out_gradient_.device(), q_columns()};
    arguments.log_sum = before.log_sum;
    arguments.q_gradient = columns(rows, 0);
    arguments.k_gradient = columns(rows, q_columns());
    arguments.v_gradient = columns(rows, q_columns() + kv_columns());
    arguments.workspace = before.workspace;
    return arguments;
  }

  template <class Call>
  [[nodiscard]] ProductRate rate(const char* name, double flops, const Call& call) {
    ProductRate rate{.name = name,
                     .rows = shapes_.sequence,
                     .columns = shapes_.sequence,
                     .inner = q_columns(),
                     .flops = flops};
    rate.seconds =
        seconds_of(device_.stream(), shapes_.seconds, [&] { device_.stream().submit(call); });
    return rate;
  }

  /// It sees itself alone: its row of the result is its row of v.
  void check_first_token() {
    const Bytes bytes{shapes_.head_dim * device_.element()};
    const PinnedMemory found(device_.backend(), bytes);
    const PinnedMemory value(device_.backend(), bytes);
    device_.stream().download(found.host(), out_.device().subspan(0, bytes.value()));
    device_.stream().download(value.host(), forward().v.data.subspan(0, bytes.value()));
    device_.stream().synchronize();
    check(std::ranges::equal(found.host(), value.host()), ErrorCode::internal,
          "attention: the first token's result is not its value");
  }

  Device& device_;
  const GpuCase& shapes_;
  model::AttentionPlan plan_;
  DeviceMemory qkv_, out_gradient_, out_, gradient_, sums_, workspace_;
};

/// `host`: [2 * bytes], uploaded from its first half and downloaded into its second.
CopyRates measure_copies(Device& device, const GpuCase& g, std::span<std::byte> host) {
  const std::uint64_t bytes = g.copy.value();
  const auto up = device.backend().make_stream("h2d");
  const auto down = device.backend().make_stream("d2h");
  const DeviceMemory above(device.backend(), g.copy);
  const DeviceMemory below(device.backend(), g.copy);
  const auto source = host.first(bytes);
  const auto target = host.subspan(bytes, bytes);
  std::memset(source.data(), 0x5a, bytes);
  up->upload(below.device(), source);
  up->synchronize();
  const auto amount = static_cast<double>(bytes) / 1e9;
  CopyRates rates;
  rates.h2d = amount / seconds_of(*up, g.seconds, [&] { up->upload(above.device(), source); });
  rates.d2h =
      amount / seconds_of(*down, g.seconds, [&] { down->download(target, below.device()); });
  check(std::ranges::equal(source, target), ErrorCode::internal,
        "what came back from the device is not what went there");
  rates.both = 2 * amount / seconds_of(*up, g.seconds, [&] {
                 up->upload(above.device(), source);
                 down->download(target, below.device());
                 down->synchronize();
               });
  return rates;
}

}  // namespace

GpuMeasurement measure_gpu(const GpuCase& shapes) {
  Device device(shapes);
  GpuMeasurement measured;
  measured.device = engine::device_name(shapes.device);
  double flops = 0;
  double seconds = 0;
  const auto add = [&](const ProductRate& rate, std::vector<ProductRate>& list) {
    const bool layer = rate.columns != shapes.vocabulary && rate.inner != shapes.vocabulary &&
                       rate.rows != shapes.vocabulary;
    if (layer) flops += rate.flops, seconds += rate.seconds;
    list.push_back(rate);
  };
  for (const Product& product : products_of(shapes)) {
    add(measure(device, product, shapes.seconds), measured.products);
  }
  for (const ProductRate& rate : AttentionBench(device, shapes).measure())
    add(rate, measured.attention);
  measured.attention_engines = device.attention_engines();
  measured.layer_tflops = flops / seconds / 1e12;
  {
    const PinnedMemory pinned(device.backend(), shapes.copy * 2U);
    measured.pinned = measure_copies(device, shapes, pinned.host());
  }
  if (shapes.pageable) {
    std::vector<std::byte> pageable(2 * shapes.copy.value());
    measured.pageable = measure_copies(device, shapes, pageable);
  }
  return measured;
}

}  // namespace spillway::bench
