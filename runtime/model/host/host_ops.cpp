#include "runtime/model/host/host_ops.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/model/host/kernels.hpp"
#include "runtime/model/host/matmul.hpp"
#include "runtime/model/host/parallel.hpp"

namespace spillway::model::host {
namespace {

template <class T>
inline constexpr DType kDtype = DType::fp32;
template <>
inline constexpr DType kDtype<Bf16> = DType::bf16;
template <>
inline constexpr DType kDtype<Fp16> = DType::fp16;

/// Elements that one thread takes at a time in element-wise loops: whole vectors, no false sharing.
constexpr std::size_t kUnit = 1024;
/// Reductions over rows split the rows into at most this many chunks, whatever the threads.
constexpr std::size_t kMaximumChunks = 64;

std::size_t chunk_rows(std::size_t rows) { return std::max<std::size_t>(32, (rows + 63) / 64); }
std::size_t chunk_count(std::size_t rows) {
  return (rows + chunk_rows(rows) - 1) / chunk_rows(rows);
}

std::uint64_t align(std::uint64_t bytes) { return round_up(bytes, 64); }

template <class T>
Heads<T> heads(HeadRows<Tensor> view) {
  return {reinterpret_cast<T*>(view.data.address()), view.stride};
}
template <class T>
Heads<const T> heads(HeadRows<ConstTensor> view) {
  return {reinterpret_cast<const T*>(view.data.address()), view.stride};
}

struct RopeTable {
  std::uint32_t sequence = 0;
  std::uint32_t half = 0;
  std::vector<float> cosine, sine;  ///< [sequence, half]
};

template <class T>
class HostOps final : public Ops {
 public:
  HostOps(const HostOpsOptions& options, const Kernels& kernels, const KernelTable<T>& table)
      : threads_(options.compute_threads),
        widen_(options.widen_matmul || !multiplies_natively(kDtype<T>)),
        table_(table) {
    static_cast<void>(kernels);
  }

  DType compute() const override { return kDtype<T>; }

  MatmulPlan plan_matmul(const MatmulShape& shape) override;
  AttentionPlan plan_attention(const AttentionShape& shape) override;
  RopePlan plan_rope(const RopeShape& shape) override;
  Bytes reduction_workspace(std::uint64_t rows, std::uint64_t columns) const override {
    const std::uint64_t partial = chunk_count(rows) * columns * sizeof(float);
    return Bytes{std::max(align(partial), align(rows * sizeof(double)))};
  }

  void matmul(MatmulPlan plan, const MatmulArguments& arguments) override;
  void attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) override;
  void attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) override;
  void norm_forward(const NormShape& shape, const NormForwardArguments& a) override;
  void norm_backward(const NormShape& shape, const NormBackwardArguments& a) override;
  void rope(RopePlan plan, const RopeArguments& a) override;
  void activation_forward(const ActivationShape& shape, ConstTensor input, Tensor out) override;
  void activation_backward(const ActivationShape& shape,
                           const ActivationBackwardArguments& a) override;
  void embedding_forward(const EmbeddingShape& shape, Tokens tokens, ConstTensor table,
                         ConstTensor positions, Tensor out) override;
  void embedding_backward(const EmbeddingShape& shape, Tokens tokens, ConstTensor out_gradient,
                          Gradient table, Gradient positions) override;
  void cross_entropy(const CrossEntropyArguments& a) override;
  void bias_gradient(std::uint64_t rows, ConstTensor out_gradient, Gradient gradient,
                     Tensor workspace) override;
  void fill_zero(offload::DeviceSpan<float> values) override;

 private:
  struct Multiplication {
    PreparedMatmul prepared;
    Bytes scratchpad;  ///< the rest of the workspace holds widened operands
  };
  void widened_matmul(Multiplication& multiplication, const MatmulArguments& arguments);
  void sum_partials(const float* partials, std::size_t chunks, Gradient gradient);
  void attention_tasks(void (*kernel)(const AttentionCall<T>&, std::size_t, float*),
                       const AttentionCall<T>& call, std::size_t floats, Tensor workspace);
  void check_tokens(Tokens tokens, std::uint64_t vocabulary, const char* what) const;
  void check_targets(Tokens targets, std::uint64_t vocabulary) const;
  void widen_all(const void* input, float* out, std::size_t count);
  static const T* cast(ConstTensor tensor) { return reinterpret_cast<const T*>(tensor.address()); }
  static T* cast(Tensor tensor) { return reinterpret_cast<T*>(tensor.address()); }

  int threads_;
  bool widen_;
  const KernelTable<T>& table_;
  std::vector<Multiplication> multiplications_;
  std::vector<AttentionShape> attentions_;
  std::vector<RopeTable> ropes_;
};

// --- matmul

template <class T>
MatmulPlan HostOps<T>::plan_matmul(const MatmulShape& shape) {
  SPILLWAY_ASSERT(shape.output == MatmulOutput::compute || (!shape.bias && !shape.residual));
  const TeamSize team(threads_);
  std::uint64_t operands = 0;
  if (widen_ && sizeof(T) == 2) {
    operands = align(shape.rows * shape.inner * 4) + align(shape.inner * shape.columns * 4);
    const std::uint64_t out = align(shape.rows * shape.columns * 4);
    if (shape.output == MatmulOutput::compute) operands += out;
    if (shape.bias) operands += align(shape.columns * 4);
    if (shape.residual) operands += out;
  }
  for (std::size_t i = 0; i < multiplications_.size(); ++i) {
    if (multiplications_[i].prepared.shape() == shape) {
      MatmulPlan plan;
      plan.index = static_cast<std::uint32_t>(i);
      plan.workspace = Bytes{multiplications_[i].scratchpad.value() + operands};
      return plan;
    }
  }
  PreparedMatmul prepared(shape, widen_ ? DType::fp32 : kDtype<T>);
  const Bytes scratchpad{align(prepared.workspace().value())};
  MatmulPlan plan;
  plan.index = static_cast<std::uint32_t>(multiplications_.size());
  plan.workspace = Bytes{scratchpad.value() + operands};
  multiplications_.push_back({std::move(prepared), scratchpad});
  return plan;
}

template <class T>
void HostOps<T>::matmul(MatmulPlan plan, const MatmulArguments& arguments) {
  const TeamSize team(threads_);
  SPILLWAY_ASSERT(arguments.workspace.size() >= plan.workspace.value());
  Multiplication& multiplication = multiplications_[plan.index];
  if constexpr (sizeof(T) == 2) {
    if (widen_) {
      widened_matmul(multiplication, arguments);
      return;
    }
  }
  multiplication.prepared.run(arguments);
}

template <class T>
void HostOps<T>::widen_all(const void* input, float* out, std::size_t count) {
  parallel_for(threads_, count, kUnit, [&](std::size_t first, std::size_t last, int) {
    table_.widen(static_cast<const T*>(input) + first, out + first, last - first);
  });
}

template <class T>
void HostOps<T>::widened_matmul(Multiplication& multiplication, const MatmulArguments& arguments) {
  const MatmulShape& s = multiplication.prepared.shape();
  std::byte* free = arguments.workspace.address() + multiplication.scratchpad.value();
  const auto take = [&](std::uint64_t count) {
    std::byte* address = free;
    free += align(count * 4);
    return offload::DeviceSpan<std::byte>{address, count * 4};
  };
  const auto widened = [&](ConstTensor tensor, std::uint64_t count) -> ConstTensor {
    const auto wide = take(count);
    widen_all(tensor.address(), reinterpret_cast<float*>(wide.address()), count);
    return wide;
  };
  MatmulArguments wide = arguments;
  wide.a = widened(arguments.a, s.rows * s.inner);
  wide.b = widened(arguments.b, s.inner * s.columns);
  if (s.bias) wide.bias = widened(arguments.bias, s.columns);
  if (s.residual) wide.residual = widened(arguments.residual, s.rows * s.columns);
  const bool narrows = s.output == MatmulOutput::compute;
  if (narrows) wide.out = take(s.rows * s.columns);
  multiplication.prepared.run(wide);
  if (!narrows) return;
  const auto* source = reinterpret_cast<const float*>(wide.out.address());
  auto* target = reinterpret_cast<T*>(arguments.out.address());
  parallel_for(threads_, s.rows * s.columns, kUnit, [&](std::size_t first, std::size_t last, int) {
    table_.narrow(source + first, target + first, last - first);
  });
}

// --- attention and rope

template <class T>
AttentionPlan HostOps<T>::plan_attention(const AttentionShape& shape) {
  SPILLWAY_ASSERT(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  const AttentionScratch scratch(shape);
  AttentionPlan plan;
  plan.index = static_cast<std::uint32_t>(attentions_.size());
  const std::size_t tasks = std::size_t{shape.batch} * shape.kv_heads;
  const std::size_t parts = std::min(tasks, static_cast<std::size_t>(threads_));
  plan.workspace = Bytes{parts * align(scratch.backward_floats() * sizeof(float))};
  attentions_.push_back(shape);
  return plan;
}

template <class T>
void HostOps<T>::attention_tasks(void (*kernel)(const AttentionCall<T>&, std::size_t, float*),
                                 const AttentionCall<T>& call, std::size_t floats,
                                 Tensor workspace) {
  const std::size_t tasks = std::size_t{call.shape.batch} * call.shape.kv_heads;
  const std::size_t stride = align(floats * sizeof(float));
  SPILLWAY_ASSERT(workspace.size() >= stride * std::min(tasks, static_cast<std::size_t>(threads_)));
  parallel_for(threads_, tasks, 1, [&](std::size_t first, std::size_t last, int part) {
    std::byte* scratch = workspace.address() + stride * static_cast<std::size_t>(part);
    for (std::size_t task = first; task < last; ++task) {
      kernel(call, task, reinterpret_cast<float*>(scratch));
    }
  });
}

template <class T>
void HostOps<T>::attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) {
  AttentionCall<T> call;
  call.shape = attentions_[plan.index];
  call.q = heads<T>(a.q);
  call.k = heads<T>(a.k);
  call.v = heads<T>(a.v);
  call.out = heads<T>(a.out);
  call.log_sum = a.log_sum.address();
  attention_tasks(table_.attention_forward, call, AttentionScratch(call.shape).forward_floats(),
                  a.workspace);
}

template <class T>
void HostOps<T>::attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) {
  AttentionCall<T> call;
  call.shape = attentions_[plan.index];
  call.q = heads<T>(a.q);
  call.k = heads<T>(a.k);
  call.v = heads<T>(a.v);
  call.out_read = heads<T>(a.out);
  call.out_gradient = heads<T>(a.out_gradient);
  call.q_gradient = heads<T>(a.q_gradient);
  call.k_gradient = heads<T>(a.k_gradient);
  call.v_gradient = heads<T>(a.v_gradient);
  call.log_sum = const_cast<float*>(a.log_sum.address());  // the backward kernel only reads it
  attention_tasks(table_.attention_backward, call, AttentionScratch(call.shape).backward_floats(),
                  a.workspace);
}

template <class T>
RopePlan HostOps<T>::plan_rope(const RopeShape& shape) {
  RopeTable table;
  table.sequence = shape.sequence;
  table.half = shape.head_dim / 2;
  SPILLWAY_ASSERT(shape.head_dim % 2 == 0 && shape.inverse_frequencies.size() == table.half);
  for (std::uint32_t position = 0; position < shape.sequence; ++position) {
    for (const float frequency : shape.inverse_frequencies) {
      // The angle rounds to fp32, as in the models that were trained with it.
      const double angle = static_cast<double>(static_cast<float>(position) * frequency);
      table.cosine.push_back(static_cast<float>(std::cos(angle)));
      table.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  RopePlan plan;
  plan.index = static_cast<std::uint32_t>(ropes_.size());
  ropes_.push_back(std::move(table));
  return plan;
}

template <class T>
void HostOps<T>::rope(RopePlan plan, const RopeArguments& a) {
  const RopeTable& table = ropes_[plan.index];
  const Heads<T> view = heads<T>(a.heads);
  const float direction = a.direction == RopeDirection::forward ? 1.0F : -1.0F;
  parallel_for(threads_, a.tokens, 1, [&](std::size_t first, std::size_t last, int) {
    for (std::size_t token = first; token < last; ++token) {
      const std::size_t at = token % table.sequence * table.half;
      for (std::size_t head = 0; head < a.head_count; ++head) {
        table_.rotate(view.data + token * view.stride + head * 2 * table.half,
                      table.cosine.data() + at, table.sine.data() + at, direction, table.half);
      }
    }
  });
}

// --- norm

template <class T>
void HostOps<T>::norm_forward(const NormShape& shape, const NormForwardArguments& a) {
  NormCall<T> call;
  call.input = heads<T>(a.input);
  call.weight = cast(a.weight);
  call.bias = a.bias.empty() ? nullptr : cast(a.bias);
  call.out = heads<T>(a.out);
  call.statistics = a.statistics.address();
  call.kind = shape.kind;
  call.heads = shape.heads;
  call.width = shape.width;
  call.eps = shape.eps;
  parallel_for(threads_, shape.tokens, 1, [&](std::size_t first, std::size_t last, int) {
    table_.norm_forward(call, first, last);
  });
}

template <class T>
void HostOps<T>::norm_backward(const NormShape& shape, const NormBackwardArguments& a) {
  NormCall<T> call;
  call.input = heads<T>(a.input);
  call.weight = cast(a.weight);
  call.out_gradient = heads<T>(a.out_gradient);
  if (!a.residual_gradient.data.empty()) call.residual_gradient = heads<T>(a.residual_gradient);
  call.input_gradient = heads<T>(a.input_gradient);
  call.statistics = const_cast<float*>(a.statistics.address());  // the backward kernel only reads
  call.kind = shape.kind;
  call.heads = shape.heads;
  call.width = shape.width;
  call.eps = shape.eps;
  const std::size_t chunk = chunk_rows(shape.tokens);
  const std::size_t chunks = chunk_count(shape.tokens);
  const bool has_bias = !a.bias_gradient.values.empty();
  auto* partial = reinterpret_cast<float*>(a.workspace.address());
  auto* bias_partial = partial + chunks * shape.width;
  SPILLWAY_ASSERT(a.workspace.size() >= chunks * shape.width * 4 * (has_bias ? 2 : 1));
  parallel_for(threads_, chunks, 1, [&](std::size_t first, std::size_t last, int) {
    for (std::size_t i = first; i < last; ++i) {
      NormCall<T> part = call;
      part.weight_partial = partial + i * shape.width;
      part.bias_partial = has_bias ? bias_partial + i * shape.width : nullptr;
      table_.norm_backward(part, i * chunk, std::min<std::size_t>(shape.tokens, (i + 1) * chunk));
    }
  });
  sum_partials(partial, chunks, a.weight_gradient);
  if (has_bias) sum_partials(bias_partial, chunks, a.bias_gradient);
}

/// gradient (+)= sum of `chunks` rows, in order.
template <class T>
void HostOps<T>::sum_partials(const float* partials, std::size_t chunks, Gradient gradient) {
  const std::size_t columns = gradient.values.size();
  parallel_for(threads_, columns, 64, [&](std::size_t first, std::size_t last, int) {
    float* out = gradient.values.address();
    for (std::size_t c = first; c < last; ++c) {
      float total = 0;
      for (std::size_t i = 0; i < chunks; ++i) total += partials[i * columns + c];
      out[c] = gradient.first ? total : out[c] + total;
    }
  });
}

template <class T>
void HostOps<T>::bias_gradient(std::uint64_t rows, ConstTensor out_gradient, Gradient gradient,
                               Tensor workspace) {
  const std::size_t columns = gradient.values.size();
  const std::size_t chunk = chunk_rows(rows);
  const std::size_t chunks = chunk_count(rows);
  SPILLWAY_ASSERT(workspace.size() >= chunks * columns * sizeof(float));
  auto* partial = reinterpret_cast<float*>(workspace.address());
  const T* input = cast(out_gradient);
  parallel_for(threads_, chunks, 1, [&](std::size_t first, std::size_t last, int) {
    for (std::size_t i = first; i < last; ++i) {
      const std::size_t count = std::min<std::size_t>(rows, (i + 1) * chunk) - i * chunk;
      table_.column_sum(input + i * chunk * columns, columns, count, columns,
                        partial + i * columns);
    }
  });
  sum_partials(partial, chunks, gradient);
}

// --- activation

template <class T>
void HostOps<T>::activation_forward(const ActivationShape& shape, ConstTensor input, Tensor out) {
  const T* x = cast(input);
  T* y = cast(out);
  if (shape.kind == Activation::silu) {
    const std::size_t columns = shape.columns;
    parallel_for(threads_, shape.rows, 1, [&](std::size_t first, std::size_t last, int) {
      table_.gated_forward(x + first * 2 * columns, y + first * columns, last - first, columns);
    });
    return;
  }
  parallel_for(threads_, shape.rows * shape.columns, kUnit,
               [&](std::size_t first, std::size_t last, int) {
                 table_.gelu_forward(shape.kind, x + first, y + first, last - first);
               });
}

template <class T>
void HostOps<T>::activation_backward(const ActivationShape& shape,
                                     const ActivationBackwardArguments& a) {
  const T* x = cast(a.input);
  const T* dy = cast(a.out_gradient);
  T* dx = cast(a.input_gradient);
  T* y = cast(a.out);
  if (shape.kind == Activation::silu) {
    const std::size_t columns = shape.columns;
    parallel_for(threads_, shape.rows, 1, [&](std::size_t first, std::size_t last, int) {
      table_.gated_backward(x + first * 2 * columns, dy + first * columns, dx + first * 2 * columns,
                            y + first * columns, last - first, columns);
    });
    return;
  }
  parallel_for(threads_, shape.rows * shape.columns, kUnit,
               [&](std::size_t first, std::size_t last, int) {
                 table_.gelu_backward(shape.kind, x + first, dy + first, dx + first, y + first,
                                      last - first);
               });
}

// --- embedding, loss, zeros

template <class T>
void HostOps<T>::check_tokens(Tokens tokens, std::uint64_t vocabulary, const char* what) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int32_t token = tokens.address()[i];
    if (token < 0 || static_cast<std::uint64_t>(token) >= vocabulary) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} {} at position {} is not below the model's "
                              "vocabulary of {}; prepare the data with this model's tokenizer",
                              what, token, i, vocabulary));
    }
  }
}

/// Targets may be negative: such a one is ignored.
template <class T>
void HostOps<T>::check_targets(Tokens targets, std::uint64_t vocabulary) const {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets.address()[i] >= 0) check_tokens({targets.address() + i, 1}, vocabulary, "target");
  }
}

template <class T>
void HostOps<T>::embedding_forward(const EmbeddingShape& shape, Tokens tokens, ConstTensor table,
                                   ConstTensor positions, Tensor out) {
  check_tokens(tokens, shape.vocabulary, "token");
  const std::size_t width = shape.width;
  const T* words = cast(table);
  const T* places = shape.positions > 0 ? cast(positions) : nullptr;
  T* y = cast(out);
  parallel_for(threads_, tokens.size(), 1, [&](std::size_t first, std::size_t last, int) {
    for (std::size_t t = first; t < last; ++t) {
      const T* word = words + static_cast<std::size_t>(tokens.address()[t]) * width;
      if (places == nullptr) {
        std::copy(word, word + width, y + t * width);
      } else {
        table_.add_rows(word, places + t % shape.sequence * width, y + t * width, width);
      }
    }
  });
}

/// Each thread owns a range of columns and adds the tokens in order.
template <class T>
void HostOps<T>::embedding_backward(const EmbeddingShape& shape, Tokens tokens,
                                    ConstTensor out_gradient, Gradient table, Gradient positions) {
  check_tokens(tokens, shape.vocabulary, "token");
  if (table.first) fill_zero(table.values);
  const bool has_positions = shape.positions > 0;
  if (has_positions && positions.first) fill_zero(positions.values);
  const std::size_t width = shape.width;
  const T* dy = cast(out_gradient);
  parallel_for(threads_, width, 64, [&](std::size_t first, std::size_t last, int) {
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const T* row = dy + t * width + first;
      const auto token = static_cast<std::size_t>(tokens.address()[t]);
      table_.accumulate(table.values.address() + token * width + first, row, last - first);
      if (has_positions) {
        const std::size_t place = t % shape.sequence;
        table_.accumulate(positions.values.address() + place * width + first, row, last - first);
      }
    }
  });
}

template <class T>
void HostOps<T>::cross_entropy(const CrossEntropyArguments& a) {
  check_targets(a.targets, a.vocabulary);
  SPILLWAY_ASSERT(a.workspace.size() >= a.rows * sizeof(double));
  CrossEntropyCall<T> call;
  call.logits = a.logits.address();
  call.targets = a.targets.address();
  call.gradient = a.logits_gradient.empty() ? nullptr : cast(a.logits_gradient);
  call.losses = reinterpret_cast<double*>(a.workspace.address());
  call.vocabulary = a.vocabulary;
  call.scale = a.gradient_scale;
  parallel_for(threads_, a.rows, 1, [&](std::size_t first, std::size_t last, int) {
    table_.cross_entropy(call, first, last);
  });
  double total = a.first ? 0.0 : *a.loss_sum.address();
  for (std::size_t row = 0; row < a.rows; ++row) total += call.losses[row];
  *a.loss_sum.address() = total;
}

template <class T>
void HostOps<T>::fill_zero(offload::DeviceSpan<float> values) {
  parallel_for(threads_, values.size(), kUnit, [&](std::size_t first, std::size_t last, int) {
    std::fill(values.address() + first, values.address() + last, 0.0F);
  });
}

}  // namespace

std::unique_ptr<Ops> make_ops(const HostOpsOptions& options) {
  check(options.compute_threads > 0, ErrorCode::invalid_argument,
        fmt::format("compute threads: {} given, at least 1 needed", options.compute_threads));
  const Kernels& kernels = choose_kernels(options.kernels);
  switch (options.compute) {
    case DType::fp32:
      return std::make_unique<HostOps<float>>(options, kernels, kernels.fp32);
    case DType::bf16:
      return std::make_unique<HostOps<Bf16>>(options, kernels, kernels.bf16);
    case DType::fp16:
      return std::make_unique<HostOps<Fp16>>(options, kernels, kernels.fp16);
  }
  throw Error(ErrorCode::invalid_argument, "unknown compute dtype");
}

}  // namespace spillway::model::host
