#include "runtime/model/host/gemm.hpp"

#include <fmt/format.h>

#include <array>
#include <oneapi/dnnl/dnnl.hpp>

#include "runtime/base/error.hpp"

namespace spillway::model::host {
namespace {

using dnnl::memory;

memory::data_type data_type(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

/// `stride` counts elements between the rows that are stored; 0: they lie side by side.
memory::desc matrix(std::uint64_t rows, std::uint64_t columns, bool transposed,
                    std::uint64_t stride, memory::data_type type) {
  const auto m = static_cast<memory::dim>(rows);
  const auto n = static_cast<memory::dim>(columns);
  const auto given = static_cast<memory::dim>(stride);
  return transposed ? memory::desc({m, n}, type, memory::dims{1, given > 0 ? given : m})
                    : memory::desc({m, n}, type, memory::dims{given > 0 ? given : n, 1});
}

void check_status(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) {
    throw Error(ErrorCode::internal,
                fmt::format("oneDNN {} failed with status {}", what, static_cast<int>(status)),
                static_cast<int>(status));
  }
}

dnnl::matmul::primitive_desc describe(const GemmShape& s, DType element, const dnnl::engine& engine,
                                      bool add) {
  const auto type = data_type(element);
  const auto out_type = s.output == GemmOutput::compute ? type : memory::data_type::f32;
  const auto a = matrix(s.rows, s.inner, s.transpose_a, s.a_stride, type);
  const auto b = matrix(s.inner, s.columns, s.transpose_b, s.b_stride, type);
  const auto c = matrix(s.rows, s.columns, /*transposed=*/false, s.out_stride, out_type);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (add) after.append_sum(1.0F);
  if (s.residual) after.append_binary(dnnl::algorithm::binary_add, c);
  attributes.set_post_ops(after);
  if (s.bias) {
    const auto bias = matrix(1, s.columns, /*transposed=*/false, 0, type);
    return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
  }
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
}

}  // namespace

struct PreparedGemm::State {
  State(const GemmShape& requested, DType element)
      : shape(requested),
        engine(dnnl::engine::kind::cpu, 0),
        stream(engine),
        overwrite_desc(describe(shape, element, engine, /*add=*/false)),
        overwrite(overwrite_desc),
        scratchpad_bytes(overwrite_desc.scratchpad_desc().get_size()) {
    if (shape.output == GemmOutput::gradient) {
      const auto desc = describe(shape, element, engine, /*add=*/true);
      add = dnnl::matmul(desc);
      scratchpad_bytes = std::max(scratchpad_bytes, desc.scratchpad_desc().get_size());
      add_scratchpad = memory(desc.scratchpad_desc(), engine, nullptr);
    }
    a = memory(overwrite_desc.src_desc(), engine, nullptr);
    b = memory(overwrite_desc.weights_desc(), engine, nullptr);
    out = memory(overwrite_desc.dst_desc(), engine, nullptr);
    scratchpad = memory(overwrite_desc.scratchpad_desc(), engine, nullptr);
    if (shape.bias) bias = memory(overwrite_desc.bias_desc(), engine, nullptr);
    if (shape.residual) residual = memory(overwrite_desc.dst_desc(), engine, nullptr);
  }

  GemmShape shape;
  dnnl::engine engine;
  dnnl::stream stream;
  dnnl::matmul::primitive_desc overwrite_desc;
  dnnl::matmul overwrite;
  dnnl::matmul add;
  std::size_t scratchpad_bytes;
  memory a, b, bias, residual, out, scratchpad, add_scratchpad;
};

bool multiplies_natively(DType compute) {
  if (compute == DType::fp32) return true;
  if (compute == DType::fp16) return false;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    describe({.rows = 16, .columns = 16, .inner = 16}, compute, engine, /*add=*/false);
    return true;
  } catch (const dnnl::error&) {
    return false;  // no bf16 below AVX-512: widened
  }
}

PreparedGemm::PreparedGemm(const GemmShape& shape, DType element) try
    : state_(std::make_unique<State>(shape, element)) {
} catch (const dnnl::error& error) {
  throw Error(ErrorCode::internal,
              fmt::format("oneDNN cannot prepare a {} matrix product [{}, {}] x [{}, {}]: {}",
                          name_of(element), shape.rows, shape.inner, shape.inner, shape.columns,
                          error.what()),
              static_cast<int>(error.status));
}

PreparedGemm::~PreparedGemm() = default;
PreparedGemm::PreparedGemm(PreparedGemm&&) noexcept = default;
PreparedGemm& PreparedGemm::operator=(PreparedGemm&&) noexcept = default;

const GemmShape& PreparedGemm::shape() const { return state_->shape; }
Bytes PreparedGemm::workspace() const { return Bytes{state_->scratchpad_bytes}; }
const char* PreparedGemm::kernel_name() const { return state_->overwrite_desc.impl_info_str(); }

// This calls the C interface: the C++ one builds a vector of arguments on the heap at every call.
void PreparedGemm::run(const GemmArguments& arguments) {
  State& s = *state_;
  const bool adds = s.shape.output == GemmOutput::gradient && !arguments.first;
  std::array<dnnl_exec_arg_t, 6> list;
  int count = 0;
  const auto bind = [&](int name, memory& object, const void* address) {
    check_status(dnnl_memory_set_data_handle(object.get(), const_cast<void*>(address)),
                 "memory binding");
    list[static_cast<std::size_t>(count++)] = {name, object.get()};
  };
  bind(DNNL_ARG_SRC, s.a, arguments.a.address());
  bind(DNNL_ARG_WEIGHTS, s.b, arguments.b.address());
  bind(DNNL_ARG_DST, s.out, arguments.out.address());
  bind(DNNL_ARG_SCRATCHPAD, adds ? s.add_scratchpad : s.scratchpad, arguments.workspace.address());
  if (s.shape.bias) bind(DNNL_ARG_BIAS, s.bias, arguments.bias.address());
  if (s.shape.residual) {
    bind(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, s.residual,
         arguments.residual.address());
  }
  const dnnl::matmul& primitive = adds ? s.add : s.overwrite;
  check_status(dnnl_primitive_execute(primitive.get(), s.stream.get(), count, list.data()),
               "matrix product");
}

}  // namespace spillway::model::host
