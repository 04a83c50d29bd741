#include "runtime/model/host/host_ops.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/model/host/gemm.hpp"
#include "runtime/model/host/kernels.hpp"
#include "runtime/model/host/parallel.hpp"
#include "runtime/model/host/row_ops.hpp"

namespace spillway::model::host {
namespace {

template <class T>
class HostOps final : public RowOps<T> {
 public:
  HostOps(const HostOpsOptions& options, const KernelTable<T>& kernels)
      : RowOps<T>(options.compute_threads, kernels),
        widen_(sizeof(T) == 2 && (options.widen_gemm || !multiplies_natively(kDtype<T>))) {}

  GemmPlan plan_gemm(const GemmShape& shape) override;
  AttentionPlan plan_attention(const AttentionShape& shape) override;
  void gemm(GemmPlan plan, const GemmArguments& arguments) override;
  void attention_forward(AttentionPlan plan, const AttentionForwardArguments& a) override;
  void attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) override;

 private:
  struct PlannedGemm {
    GemmShape shape;
    PreparedGemm prepared;  ///< of `shape`, or of widened operands without strides
    Bytes scratchpad;       ///< the rest of the workspace holds widened operands
    Bytes workspace;
  };
  using RowOps<T>::threads;
  using RowOps<T>::table;

  [[nodiscard]] std::uint64_t widened_bytes(const GemmShape& shape) const;
  void widened_gemm(PlannedGemm& multiplication, const GemmArguments& arguments);
  void attention_tasks(void (*kernel)(const AttentionCall<T>&, std::size_t, float*),
                       const AttentionCall<T>& call, std::size_t floats, Tensor workspace);

  bool widen_;
  std::vector<PlannedGemm> gemms_;
  std::vector<AttentionShape> attentions_;
};

// --- gemm

template <class T>
std::uint64_t HostOps<T>::widened_bytes(const GemmShape& s) const {
  if (!widen_) return 0;
  const std::uint64_t out = align_bytes(s.rows * s.columns * 4);
  return align_bytes(s.rows * s.inner * 4) + align_bytes(s.inner * s.columns * 4) +
         (s.output == GemmOutput::compute ? out : 0) + (s.bias ? align_bytes(s.columns * 4) : 0) +
         (s.residual ? out : 0);
}

template <class T>
GemmPlan HostOps<T>::plan_gemm(const GemmShape& shape) {
  SPILLWAY_ASSERT(shape.output == GemmOutput::compute || (!shape.bias && !shape.residual));
  std::size_t index = 0;
  while (index < gemms_.size() && gemms_[index].shape != shape) ++index;
  if (index == gemms_.size()) {
    const TeamSize team(threads());
    GemmShape dense = shape;
    // Widening packs the operands; sums in fp32 are written where they belong.
    dense.a_stride = dense.b_stride = 0;
    if (shape.output == GemmOutput::compute) dense.out_stride = 0;
    PreparedGemm prepared(widen_ ? dense : shape, widen_ ? DType::fp32 : kDtype<T>);
    const Bytes scratchpad{align_bytes(prepared.workspace().value())};
    const Bytes workspace = scratchpad + Bytes{widened_bytes(shape)};
    gemms_.push_back({shape, std::move(prepared), scratchpad, workspace});
  }
  GemmPlan plan;
  plan.index = static_cast<std::uint32_t>(index);
  plan.workspace = gemms_[index].workspace;
  return plan;
}

template <class T>
void HostOps<T>::gemm(GemmPlan plan, const GemmArguments& arguments) {
  const TeamSize team(threads());
  SPILLWAY_ASSERT(arguments.workspace.size() >= plan.workspace.value());
  PlannedGemm& multiplication = gemms_[plan.index];
  if constexpr (sizeof(T) == 2) {
    if (widen_) {
      widened_gemm(multiplication, arguments);
      return;
    }
  }
  multiplication.prepared.run(arguments);
}

template <class T>
void HostOps<T>::widened_gemm(PlannedGemm& multiplication, const GemmArguments& arguments) {
  const GemmShape& s = multiplication.shape;
  std::byte* free = arguments.workspace.address() + multiplication.scratchpad.value();
  const auto take = [&](std::uint64_t count) {
    std::byte* address = free;
    free += align_bytes(count * 4);
    return offload::DeviceSpan<std::byte>{address, count * 4};
  };
  /// Calls copy(position in the strided matrix, in the packed one, count) for all its elements.
  const auto pack = [&](std::uint64_t rows, std::uint64_t columns, std::uint64_t stride,
                        auto copy) {
    if (stride == 0 || stride == columns) {
      parallel_for(threads(), rows * columns, kUnit, [&](std::size_t first, std::size_t last, int) {
        copy(first, first, last - first);
      });
      return;
    }
    parallel_for(threads(), rows, items_in_unit(columns),
                 [&](std::size_t first, std::size_t last, int) {
                   for (std::size_t r = first; r < last; ++r) {
                     copy(r * stride, r * columns, columns);
                   }
                 });
  };
  const auto widened = [&](ConstTensor tensor, std::uint64_t rows, std::uint64_t columns,
                           std::uint64_t stride) -> ConstTensor {
    const auto wide = take(rows * columns);
    const auto* source = reinterpret_cast<const T*>(tensor.address());
    auto* target = reinterpret_cast<float*>(wide.address());
    pack(rows, columns, stride, [&](std::size_t from, std::size_t to, std::size_t count) {
      table().widen(source + from, target + to, count);
    });
    return wide;
  };
  GemmArguments wide = arguments;
  wide.a = s.transpose_a ? widened(arguments.a, s.inner, s.rows, s.a_stride)
                         : widened(arguments.a, s.rows, s.inner, s.a_stride);
  wide.b = s.transpose_b ? widened(arguments.b, s.columns, s.inner, s.b_stride)
                         : widened(arguments.b, s.inner, s.columns, s.b_stride);
  if (s.bias) wide.bias = widened(arguments.bias, 1, s.columns, 0);
  if (s.residual) wide.residual = widened(arguments.residual, s.rows, s.columns, s.out_stride);
  const bool narrows = s.output == GemmOutput::compute;
  if (narrows) wide.out = take(s.rows * s.columns);
  multiplication.prepared.run(wide);
  if (!narrows) return;
  const auto* source = reinterpret_cast<const float*>(wide.out.address());
  auto* target = reinterpret_cast<T*>(arguments.out.address());
  pack(s.rows, s.columns, s.out_stride, [&](std::size_t to, std::size_t from, std::size_t count) {
    table().narrow(source + from, target + to, count);
  });
}

// --- attention

template <class T>
AttentionPlan HostOps<T>::plan_attention(const AttentionShape& shape) {
  SPILLWAY_ASSERT(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  const AttentionScratch scratch(shape);
  AttentionPlan plan;
  plan.index = static_cast<std::uint32_t>(attentions_.size());
  const std::size_t tasks = std::size_t{shape.batch} * shape.kv_heads;
  const std::size_t parts = std::min(tasks, static_cast<std::size_t>(threads()));
  plan.workspace = Bytes{parts * align_bytes(scratch.backward_floats() * sizeof(float))};
  attentions_.push_back(shape);
  return plan;
}

template <class T>
void HostOps<T>::attention_tasks(void (*kernel)(const AttentionCall<T>&, std::size_t, float*),
                                 const AttentionCall<T>& call, std::size_t floats,
                                 Tensor workspace) {
  const std::size_t tasks = std::size_t{call.shape.batch} * call.shape.kv_heads;
  const std::size_t stride = align_bytes(floats * sizeof(float));
  const std::size_t visited = std::size_t{call.shape.sequence} * call.shape.sequence;
  SPILLWAY_ASSERT(workspace.size() >=
                  stride * std::min(tasks, static_cast<std::size_t>(threads())));
  parallel_for(threads(), tasks, items_in_unit(visited),
               [&](std::size_t first, std::size_t last, int part) {
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
  SPILLWAY_ASSERT(keeps_strides(call.shape, a));
  call.q = heads<T>(a.q);
  call.k = heads<T>(a.k);
  call.v = heads<T>(a.v);
  call.out = heads<T>(a.out);
  call.log_sum = a.log_sum.address();
  attention_tasks(table().attention_forward, call, AttentionScratch(call.shape).forward_floats(),
                  a.workspace);
}

template <class T>
void HostOps<T>::attention_backward(AttentionPlan plan, const AttentionBackwardArguments& a) {
  AttentionCall<T> call;
  call.shape = attentions_[plan.index];
  SPILLWAY_ASSERT(keeps_strides(call.shape, a));
  call.q = heads<T>(a.q);
  call.k = heads<T>(a.k);
  call.v = heads<T>(a.v);
  call.out_read = heads<T>(a.out);
  call.out_gradient = heads<T>(a.out_gradient);
  call.q_gradient = heads<T>(a.q_gradient);
  call.k_gradient = heads<T>(a.k_gradient);
  call.v_gradient = heads<T>(a.v_gradient);
  call.log_sum = const_cast<float*>(a.log_sum.address());  // the backward kernel only reads it
  attention_tasks(table().attention_backward, call, AttentionScratch(call.shape).backward_floats(),
                  a.workspace);
}

}  // namespace

std::unique_ptr<Ops> make_ops(const HostOpsOptions& options) {
  check(options.compute_threads > 0, ErrorCode::invalid_argument,
        fmt::format("compute threads: {} given, at least 1 needed", options.compute_threads));
  // oneDNN leaves out the work of threads that it does not get.
  check(options.compute_threads <= largest_team(), ErrorCode::invalid_argument,
        fmt::format("compute threads: {} given, and the environment's OMP_THREAD_LIMIT allows {}; "
                    "unset it or lower --compute-threads",
                    options.compute_threads, largest_team()));
  const Kernels& kernels = choose_kernels(options.kernels);
  switch (options.compute) {
    case DType::fp32: return std::make_unique<HostOps<float>>(options, kernels.fp32);
    case DType::bf16: return std::make_unique<HostOps<Bf16>>(options, kernels.bf16);
    case DType::fp16: return std::make_unique<HostOps<Fp16>>(options, kernels.fp16);
  }
  throw Error(ErrorCode::invalid_argument, "unknown compute dtype");
}

}  // namespace spillway::model::host
