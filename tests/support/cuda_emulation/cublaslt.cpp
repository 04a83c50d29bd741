// cuBLASLt by its documentation: column-major matrices, fp32 sums in ascending order, or in two
// halves that are added at the end.
#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "tests/support/cuda_emulation/device.hpp"
#include "tests/support/cuda_emulation/grid.hpp"
#include "tests/support/cuda_emulation/library_call.hpp"

using cuda_emulation::element_bytes;
using cuda_emulation::expect_operand;
using cuda_emulation::fault;

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t transpose_a = CUBLAS_OP_N;
  cublasOperation_t transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;  ///< the result's
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  ///< of a, b, c and d
};

namespace {

/// The words of an algorithm.
enum Word : std::size_t { word_known, word_problem, word_halves, word_alignments, word_bias };
constexpr std::uint64_t kKnown = 0x656d756c61746564;
constexpr std::size_t kHalvesWorkspace = std::size_t{1} << 20;

struct Matrix {
  cudaDataType_t type = CUDA_R_32F;
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t leading = 0;

  [[nodiscard]] std::size_t bytes() const {
    return columns == 0 ? 0 : ((columns - 1) * leading + rows) * element_bytes(type);
  }
};

struct Problem {
  Matrix a, b, d;
  bool transpose_a = false;
  bool transpose_b = false;
  bool bias = false;
  cudaDataType_t bias_type = CUDA_R_32F;
  std::uint64_t m = 0;
  std::uint64_t n = 0;
  std::uint64_t k = 0;
  bool tf32 = false;
};

Matrix matrix_of(const cublasLtMatrixLayoutOpaque_t& layout) {
  return {layout.type, layout.rows, layout.columns, static_cast<std::uint64_t>(layout.leading)};
}

bool same(const cublasLtMatrixLayoutOpaque_t& a, const cublasLtMatrixLayoutOpaque_t& b) {
  return a.type == b.type && a.rows == b.rows && a.columns == b.columns && a.leading == b.leading;
}

/// Whether the matrices fit each other; `problem` is what they make.
cublasStatus_t describe(const cublasLtMatmulDescOpaque_t& description,
                        const cublasLtMatrixLayoutOpaque_t& a,
                        const cublasLtMatrixLayoutOpaque_t& b,
                        const cublasLtMatrixLayoutOpaque_t& c,
                        const cublasLtMatrixLayoutOpaque_t& d, Problem& problem) {
  problem = {.a = matrix_of(a),
             .b = matrix_of(b),
             .d = matrix_of(d),
             .transpose_a = description.transpose_a == CUBLAS_OP_T,
             .transpose_b = description.transpose_b == CUBLAS_OP_T,
             .bias = description.epilogue == CUBLASLT_EPILOGUE_BIAS,
             .bias_type = description.bias_type < 0
                              ? d.type
                              : static_cast<cudaDataType_t>(description.bias_type),
             .m = d.rows,
             .n = d.columns,
             .k = description.transpose_a == CUBLAS_OP_T ? a.rows : a.columns,
             .tf32 = description.compute == CUBLAS_COMPUTE_32F_FAST_TF32};
  for (const auto* layout : {&a, &b, &c, &d}) {
    if (layout->rows == 0 || layout->columns == 0 ||
        layout->leading < static_cast<std::int64_t>(layout->rows)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const Problem& p = problem;
  const bool fits = (p.transpose_a ? a.columns : a.rows) == p.m &&
                    (p.transpose_b ? b.rows : b.columns) == p.n &&
                    (p.transpose_b ? b.columns : b.rows) == p.k && same(c, d);
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  const bool supported = a.type == b.type && (d.type == a.type || d.type == CUDA_R_32F) &&
                         description.scale == CUDA_R_32F && p.bias_type == d.type &&
                         (!p.tf32 || a.type == CUDA_R_32F);
  return supported ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::uint64_t number_of(const Problem& p) {
  std::uint64_t number = 14695981039346656037ULL;
  for (const std::uint64_t value :
       {std::uint64_t{p.a.type}, std::uint64_t{p.d.type}, p.m, p.n, p.k, p.a.leading, p.b.leading,
        p.d.leading, std::uint64_t{p.transpose_a}, std::uint64_t{p.transpose_b},
        std::uint64_t{p.bias}, std::uint64_t{p.tf32}}) {
    number = (number ^ value) * 1099511628211ULL;
  }
  return number;
}

std::uint64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
  return std::uint64_t{1} << std::countr_zero(bits);
}

std::uint64_t promised(const cublasLtMatmulAlgo_t& algorithm, unsigned operand) {
  return algorithm.data[word_alignments] >> (16 * operand) & 0xffff;
}

struct Call {
  Problem problem;
  const void* a;
  const void* b;
  const void* c;
  void* d;
  const void* bias;
  float alpha;
  float beta;
  bool halves;
};

/// Ten bits of mantissa.
float to_tf32(float value) {
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & 0xffffe000);
}

/// Stored [rows, columns] column-major; the result [inner][outer], `inner` the one that is summed.
std::vector<float> by_inner(const void* base, const Matrix& matrix, bool inner_is_row, bool tf32) {
  const std::uint64_t outer = inner_is_row ? matrix.columns : matrix.rows;
  std::vector<float> result(matrix.rows * matrix.columns);
  for (std::uint64_t j = 0; j < matrix.columns; ++j) {
    for (std::uint64_t i = 0; i < matrix.rows; ++i) {
      const float value = cuda_emulation::load(matrix.type, base, i + j * matrix.leading);
      result[inner_is_row ? i * outer + j : j * outer + i] = tf32 ? to_tf32(value) : value;
    }
  }
  return result;
}

void add_products(std::vector<float>& sums, const std::vector<float>& a,
                  const std::vector<float>& b, const Problem& p, std::uint64_t column,
                  std::uint64_t first, std::uint64_t last) {
  for (std::uint64_t k = first; k < last; ++k) {
    const float factor = b[k * p.n + column];
    const float* const values = a.data() + k * p.m;
    for (std::uint64_t i = 0; i < p.m; ++i) sums[i] += values[i] * factor;
  }
}

void multiply(const Call& call) {
  const Problem& p = call.problem;
  const std::vector<float> a = by_inner(call.a, p.a, p.transpose_a, p.tf32);
  const std::vector<float> b = by_inner(call.b, p.b, !p.transpose_b, p.tf32);
  const std::uint64_t middle = call.halves ? p.k / 2 : p.k;
  std::vector<float> sums(p.m);
  std::vector<float> rest(p.m);
  for (std::uint64_t column = 0; column < p.n; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0F);
    std::fill(rest.begin(), rest.end(), 0.0F);
    add_products(sums, a, b, p, column, 0, middle);
    add_products(rest, a, b, p, column, middle, p.k);
    for (std::uint64_t i = 0; i < p.m; ++i) {
      const std::uint64_t index = i + column * p.d.leading;
      float value = call.alpha * (call.halves ? sums[i] + rest[i] : sums[i]);
      // What is added with a factor of 0 is not read.
      if (call.beta != 0) value += call.beta * cuda_emulation::load(p.d.type, call.c, index);
      if (p.bias) value += cuda_emulation::load(p.bias_type, call.bias, i);
      cuda_emulation::store(p.d.type, call.d, index, value);
    }
  }
}

bool overlap(const void* a, std::size_t a_size, const void* b, std::size_t b_size) {
  const auto* const first = static_cast<const std::byte*>(a);
  const auto* const second = static_cast<const std::byte*>(b);
  return first < second + b_size && second < first + a_size;
}

void check_operands(const Call& call, const cublasLtMatmulAlgo_t& algorithm) {
  const Problem& p = call.problem;
  expect_operand("a product's left operand", call.a, p.a.bytes(), promised(algorithm, 0));
  expect_operand("a product's right operand", call.b, p.b.bytes(), promised(algorithm, 1));
  expect_operand("a product's result", call.d, p.d.bytes(), promised(algorithm, 3));
  if (call.beta != 0) {
    expect_operand("what is added to a product", call.c, p.d.bytes(), promised(algorithm, 2));
    if (call.c != call.d && overlap(call.c, p.d.bytes(), call.d, p.d.bytes())) {
      fault("a product's result lies across what is added to it");
    }
  }
  if (p.bias) {
    expect_operand("a bias", call.bias, p.m * element_bytes(p.bias_type),
                   algorithm.data[word_bias]);
  }
  if (overlap(call.a, p.a.bytes(), call.d, p.d.bytes()) ||
      overlap(call.b, p.b.bytes(), call.d, p.d.bytes())) {
    fault("a product's result lies across one of its operands");
  }
}

template <class Value>
cublasStatus_t set(Value& value, const void* given, std::size_t size) {
  if (given == nullptr || size != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, given, size);
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object>
cublasStatus_t destroy(Object* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(handle); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  *description = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(d->transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(d->transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(d->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(d->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(d->bias_type, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  *layout = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(p->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(p->reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(p->alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(p->alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(p->alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(p->alignment[3], value, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  *found = 0;
  Problem problem;
  const cublasStatus_t status = describe(*description, *a, *b, *c, *d, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  std::uint64_t alignments = 0;
  for (unsigned i = 0; i < 4; ++i) {
    alignments |= std::uint64_t{preference->alignment[i]} << (16 * i);
  }
  const bool halves_fit = (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
                          preference->workspace >= kHalvesWorkspace && problem.k > 1;
  for (const bool halves : {false, true}) {
    if (*found == wanted || (halves && !halves_fit)) break;
    cublasLtMatmulHeuristicResult_t& result = results[(*found)++];
    result = {
        .algo = {{kKnown, number_of(problem), halves, alignments, alignment_of(description->bias)}},
        .workspaceSize = halves ? kHalvesWorkspace : 0,
        .state = CUBLAS_STATUS_SUCCESS,
        .wavesCount = 1,
        .reserved = {}};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/,
                                       cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  Problem problem;
  const cublasStatus_t status = describe(*description, *a, *b, *c, *d, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (algorithm->data[word_known] != kKnown ||
      algorithm->data[word_problem] != number_of(problem)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  result->workspaceSize = algorithm->data[word_halves] != 0 ? kHalvesWorkspace : 0;
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_size, cudaStream_t stream) {
  if (cuda_emulation::Device::Lock()->broken != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  cublasLtMatmulHeuristicResult_t needed{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, description, a_layout, b_layout,
                                                        c_layout, d_layout, algorithm, &needed);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (needed.workspaceSize > workspace_size) return CUBLAS_STATUS_INVALID_VALUE;
  Call call{.problem = {},
            .a = a,
            .b = b,
            .c = c,
            .d = d,
            .bias = description->bias,
            .alpha = *static_cast<const float*>(alpha),
            .beta = *static_cast<const float*>(beta),
            .halves = algorithm->data[word_halves] != 0};
  static_cast<void>(
      describe(*description, *a_layout, *b_layout, *c_layout, *d_layout, call.problem));
  if (call.problem.bias && call.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  check_operands(call, *algorithm);
  expect_operand("a product's workspace", workspace, workspace_size, 256);
  cuda_emulation::enqueue_call(stream, {workspace, workspace_size}, [call, algorithm = *algorithm] {
    check_operands(call, algorithm);
    multiply(call);
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
