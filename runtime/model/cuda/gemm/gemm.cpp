#include "runtime/model/cuda/gemm/gemm.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::model::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm));

cudaDataType_t element_type(DType dtype) {
  switch (dtype) {
    case DType::fp32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::fp16: return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

std::uint64_t address_bits(const GemmShape& shape, const GemmArguments& a) {
  const auto bits = [](const void* address) { return std::bit_cast<std::uintptr_t>(address); };
  return bits(a.a.address()) | bits(a.b.address()) | bits(a.out.address()) |
         (shape.bias ? bits(a.bias.address()) : 0) |
         (shape.residual ? bits(a.residual.address()) : 0);
}

std::uint32_t operand_alignment(Alignment alignment, const CudaMath& math) {
  return static_cast<std::uint32_t>(alignment == Alignment::sixteen ? kAligned
                                                                    : size_of(math.compute));
}

/// Returns the library's workspace within the caller's, which may be aligned to less.
void* aligned_workspace(const GemmArguments& a) {
  const auto first = std::bit_cast<std::uintptr_t>(a.workspace.address());
  return a.workspace.address() + (round_up(first, kWorkspaceAlignment) - first);
}

}  // namespace

// --- one shape

GemmDescriptors::GemmDescriptors(const CublasLt& library, const GemmShape& shape,
                                 const CudaMath& math)
    : library_(&library),
      shape_(shape),
      math_(math),
      description_(nullptr, library.destroy_description),
      left_(nullptr, library.destroy_layout),
      right_(nullptr, library.destroy_layout),
      result_(nullptr, library.destroy_layout) {
  const ColumnMajorGemm gemm = column_major(shape);
  const cublasComputeType_t compute =
      math.compute == DType::fp32 && math.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t description = nullptr;
  library.check(library.create_description(&description, compute, CUDA_R_32F), "making a gemm");
  description_.reset(description);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    library.check(library.set_description(description, attribute, &value, sizeof(value)),
                  "describing a gemm");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_left ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, gemm.transpose_right ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE,
      gemm.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
  const cudaDataType_t type = element_type(math.compute);
  left_ = make_layout(gemm.left, type);
  right_ = make_layout(gemm.right, type);
  result_ = make_layout(gemm.result, gemm.fp32_result ? CUDA_R_32F : type);
}

GemmDescriptors::Layout GemmDescriptors::make_layout(const ColumnMajor& matrix,
                                                     cudaDataType_t type) const {
  cublasLtMatrixLayout_t layout = nullptr;
  library_->check(library_->create_layout(&layout, type, matrix.rows, matrix.columns,
                                          static_cast<std::int64_t>(matrix.leading)),
                  "making a matrix layout");
  return {layout, library_->destroy_layout};
}

std::string GemmDescriptors::name() const {
  return fmt::format("[{}, {}] x [{}, {}] in {}", shape_.rows, shape_.inner, shape_.inner,
                     shape_.columns, spillway::name_of(math_.compute));
}

void GemmDescriptors::describe_bias(Alignment alignment) const {
  if (!shape_.bias) return;
  const auto bias = std::uintptr_t{kWorkspaceAlignment} + operand_alignment(alignment, math_);
  const auto* pointer = std::bit_cast<const void*>(bias);
  library_->check(library_->set_description(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                            &pointer, sizeof(pointer)),
                  "describing a bias");
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmDescriptors::propose(cublasLtHandle_t handle,
                                                                      Alignment alignment,
                                                                      int count) const {
  cublasLtMatmulPreference_t made = nullptr;
  library_->check(library_->create_preference(&made), "making preferences");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(library_->destroy_preference)>
      preference(made, library_->destroy_preference);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    library_->check(library_->set_preference(made, attribute, &value, sizeof(value)),
                    "setting preferences");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspace.value());
  // Split sums may be added up by a second kernel, in fp32 and in order. Those that the parts add
  // to the result as they finish have no fixed order, and 16-bit parts lose what fp32 sums keep.
  if (math_.deterministic) {
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }
  const std::uint32_t operand = operand_alignment(alignment, math_);
  const bool fp32_result = shape_.output != GemmOutput::compute;
  const auto result =
      alignment == Alignment::element && fp32_result ? std::uint32_t{sizeof(float)} : operand;
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, operand);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, operand);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result);
  describe_bias(alignment);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
  int found = 0;
  const cublasStatus_t status =
      library_->heuristic(handle, description_.get(), left_.get(), right_.get(), result_.get(),
                          result_.get(), made, count, results.data(), &found);
  // A shape that the heuristic does not take has no algorithm either.
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) {
    library_->check(status, "choosing an algorithm");
  }
  results.resize(static_cast<std::size_t>(found));
  std::erase_if(results, [](const auto& r) {
    return r.state != CUBLAS_STATUS_SUCCESS || r.workspaceSize > kGemmWorkspace.value();
  });
  return results;
}

bool GemmDescriptors::accepts(cublasLtHandle_t handle, Alignment alignment,
                              const cublasLtMatmulAlgo_t& algorithm) const {
  describe_bias(alignment);
  cublasLtMatmulHeuristicResult_t result{};
  return library_->check_algorithm(handle, description_.get(), left_.get(), right_.get(),
                                   result_.get(), result_.get(), &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kGemmWorkspace.value();
}

void GemmDescriptors::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                          const GemmArguments& a, cudaStream_t stream) {
  if (shape_.bias) {
    const void* bias = a.bias.address();
    library_->check(library_->set_description(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                              &bias, sizeof(bias)),
                    "describing a bias");
  }
  const float one = 1;
  const float factor = beta(shape_, a.first);
  // What is added is not read where its factor is 0.
  const void* added = shape_.residual ? a.residual.address() : a.out.address();
  const cublasStatus_t status =
      library_->matmul(handle, description_.get(), &one, a.b.address(), left_.get(), a.a.address(),
                       right_.get(), &factor, added, result_.get(), a.out.address(), result_.get(),
                       &algorithm, aligned_workspace(a), kGemmWorkspace.value(), stream);
  if (status != CUBLAS_STATUS_SUCCESS) library_->check(status, "the gemm " + name(), stream);
}

// --- all shapes

Multiplier::Multiplier(const CublasLt& library, MultiplierOptions options)
    : library_(&library), options_(std::move(options)) {
  library.check(library.create(&handle_), "starting");
}

Multiplier::~Multiplier() {
  if (library_->destroy(handle_) != CUBLAS_STATUS_SUCCESS) log_warning("cuBLASLt did not stop");
}

std::string Multiplier::key(const GemmShape& shape, Alignment alignment) const {
  return GemmKey{.device = options_.device_name,
                 .library = library_->get_version(),
                 .compute = options_.math.compute,
                 .tf32 = options_.math.compute == DType::fp32 && options_.math.tf32,
                 .deterministic = options_.math.deterministic,
                 .aligned = alignment == Alignment::sixteen,
                 .shape = shape}
      .text();
}

std::optional<cublasLtMatmulAlgo_t> Multiplier::choose(const GemmDescriptors& descriptors,
                                                       Alignment alignment) {
  const std::string name = key(descriptors.shape(), alignment);
  cublasLtMatmulAlgo_t algorithm{};
  if (const auto chosen = options_.choices.find(name)) {
    std::memcpy(&algorithm, chosen->data(), sizeof(algorithm));
    check(descriptors.accepts(handle_, alignment, algorithm), ErrorCode::invalid_argument,
          fmt::format("the recorded algorithm of {} does not run here; one of this machine's "
                      "profile is measured again by spillway profile --again with the model",
                      name));
  } else {
    const auto proposals = descriptors.propose(handle_, alignment, 1);
    if (proposals.empty()) return std::nullopt;
    algorithm = proposals.front().algo;
  }
  GemmAlgorithm words;
  std::memcpy(words.data(), &algorithm, sizeof(algorithm));
  used_.set(name, words);
  return algorithm;
}

GemmPlan Multiplier::plan(const GemmShape& shape) {
  SPILLWAY_ASSERT(shape.output == GemmOutput::compute || (!shape.bias && !shape.residual));
  const auto known = std::find_if(prepared_.begin(), prepared_.end(), [&](const Prepared& p) {
    return p.descriptors.shape() == shape;
  });
  GemmPlan plan;
  plan.index = static_cast<std::uint32_t>(known - prepared_.begin());
  plan.workspace = gemm_workspace();
  if (known != prepared_.end()) return plan;
  GemmDescriptors descriptors(*library_, shape, options_.math);
  const auto aligned = choose(descriptors, Alignment::sixteen);
  const auto unaligned = choose(descriptors, Alignment::element);
  check(aligned || unaligned, ErrorCode::not_supported,
        fmt::format("cuBLASLt has no {}algorithm for {} within {} bytes of workspace",
                    options_.math.deterministic ? "deterministic " : "", descriptors.name(),
                    kGemmWorkspace.value()));
  prepared_.push_back({std::move(descriptors), aligned, unaligned});
  return plan;
}

void Multiplier::run(GemmPlan plan, const GemmArguments& arguments, cudaStream_t stream) {
  SPILLWAY_ASSERT(arguments.workspace.size() >= plan.workspace.value());
  Prepared& p = prepared_[plan.index];
  const bool aligned = address_bits(p.descriptors.shape(), arguments) % kAligned == 0;
  // One that takes any operands takes aligned ones too, never the other way round.
  const auto& algorithm = aligned && p.aligned ? p.aligned : p.unaligned;
  check(algorithm.has_value(), ErrorCode::not_supported,
        fmt::format("cuBLASLt has no algorithm for {} with operands that do not start at multiples "
                    "of 16 bytes",
                    p.descriptors.name()));
  p.descriptors.run(handle_, *algorithm, arguments, stream);
}

}  // namespace spillway::model::cuda
