#include "runtime/model/cuda/attention/attention_cudnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/base/cuda/check.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/shared_library.hpp"
#include "runtime/model/cuda/attention/cudnn_frontend_loaded.hpp"
#include "runtime/model/cuda/attention/cudnn_version.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend's name for the loaded library
}

namespace spillway::model::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

constexpr const char* kCompilerName = "libnvrtc.so.13";
constexpr std::string_view kCompilerBuiltins = "libnvrtc-builtins.so.";
constexpr const char* kCudnnRemedy =
    "the CUDA backend attends with cuDNN 9.18 or newer, which compiles with NVRTC 13; install them "
    "or the Python packages nvidia-cudnn-cu13 and nvidia-cuda-nvrtc, or run tools/setup cuda";

/// A graph's tensors in the map of addresses.
enum Uid : std::int64_t {
  uid_q = 1,
  uid_k,
  uid_v,
  uid_out,
  uid_log_sum,
  uid_out_gradient,
  uid_q_gradient,
  uid_k_gradient,
  uid_v_gradient
};
using Addresses = std::unordered_map<std::int64_t, void*>;

/// Returns what cuDNN itself says of its last failure, behind a blank; nothing if it is silent.
std::string reason_of_library() {
  std::string reason = fe::detail::get_last_error_string_();
  reason.resize(std::min(reason.size(), reason.find('\0')));
  return reason.empty() ? reason : " " + reason;
}

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::not_supported, "cuDNN's attention: " + reason + reason_of_library());
}

void expect_good(fe::error_t status, const char* what) {
  if (status.is_bad()) refuse(fmt::format("{}: {}", what, status.get_message()));
}

/// What cuDNN sees of a call: a part of the batch and of the heads.
struct PartShape {
  std::int64_t batch, heads, kv_heads, sequence, dim;
};

/// What graphs are built for: the device of a handle, or one that is only described.
struct Target {
  cudnnHandle_t handle = nullptr;
  std::shared_ptr<const fe::DeviceProperties> described{};
};

class GraphBuilder {
 public:
  GraphBuilder(const AttentionShape& shape, const CudaMath& math, const PartShape& part)
      : graph_(std::make_unique<Graph>()),
        part_(part),
        all_heads_(shape.heads),
        type_(math.compute == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF) {
    graph_->set_io_data_type(type_)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  TensorPtr heads(Uid uid, std::int64_t heads, std::uint64_t stride) {
    return graph_->tensor(place(Tensor_attributes(), uid, heads, stride));
  }
  void output(const TensorPtr& tensor, Uid uid, std::int64_t heads, std::uint64_t stride) {
    place(*tensor, uid, heads, stride).set_output(true);
  }
  /// Describes log_sum [batch, heads, sequence] as cuDNN's [batch, heads, sequence, 1].
  Tensor_attributes& statistics(Tensor_attributes& tensor) const {
    return tensor.set_uid(uid_log_sum)
        .set_dim({part_.batch, part_.heads, part_.sequence, 1})
        .set_stride({all_heads_ * part_.sequence, part_.sequence, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  Graph& graph() { return *graph_; }

  /// Chooses and compiles an engine that needs at most `workspace`.
  std::unique_ptr<Graph> finish(const Target& target, Bytes workspace) {
    Graph& g = *graph_;
    if (target.described) g.set_device_properties(target.described);
    const auto limit = static_cast<std::int64_t>(workspace.value() - kWorkspaceAlignment);
    expect_good(g.validate(), "the graph is not valid");
    expect_good(g.build_operation_graph(target.handle), "the graph cannot be built");
    expect_good(g.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}),
                "no engine was proposed");
    g.deselect_workspace_greater_than(limit);
    expect_good(g.check_support(), "no engine supports it");
    // The frontend says that all failed; why is known of each alone.
    if (g.build_plans().is_bad()) expect_good(g.build_plan_at_index(0), "no engine could be built");
    std::int64_t needed = 0;
    expect_good(g.get_workspace_size(needed), "asking for its workspace");
    if (needed > limit) refuse(fmt::format("{} bytes of workspace, {} planned", needed, limit));
    return std::move(graph_);
  }

 private:
  template <class T>
  T&& place(T&& tensor, Uid uid, std::int64_t heads, std::uint64_t row_stride) const {
    const auto stride = static_cast<std::int64_t>(row_stride);
    tensor.set_uid(uid)
        .set_dim({part_.batch, heads, part_.sequence, part_.dim})
        .set_stride({part_.sequence * stride, part_.dim, stride, 1})
        .set_data_type(type_);
    return std::forward<T>(tensor);
  }

  std::unique_ptr<Graph> graph_;
  PartShape part_;
  std::int64_t all_heads_;
  fe::DataType_t type_;
};

PartShape part_shape(const AttentionShape& s, const AttentionPart& part) {
  return {.batch = part.batch,
          .heads = std::int64_t{part.kv_heads} * (s.heads / s.kv_heads),
          .kv_heads = part.kv_heads,
          .sequence = s.sequence,
          .dim = s.head_dim};
}

float score_scale(const AttentionShape& s) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)));
}

std::unique_ptr<Graph> forward_graph(const AttentionShape& s, const CudaMath& math,
                                     const Target& target) {
  const PartShape part = part_shape(s, {s.batch, s.kv_heads});
  const AttentionStrides strides = s.row_strides();
  GraphBuilder builder(s, math, part);
  const TensorPtr q = builder.heads(uid_q, part.heads, strides.q);
  const TensorPtr k = builder.heads(uid_k, part.kv_heads, strides.k);
  const TensorPtr v = builder.heads(uid_v, part.kv_heads, strides.v);
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0)
                     .set_attn_scale(score_scale(s));
  const auto [out, statistics] = builder.graph().sdpa(q, k, v, std::move(options));
  builder.output(out, uid_out, part.heads, strides.out);
  builder.statistics(*statistics).set_output(true);
  return builder.finish(target, attention_workspace(s, math));
}

std::unique_ptr<Graph> backward_graph(const AttentionShape& s, const CudaMath& math,
                                      const AttentionPart& at, const Target& target) {
  const PartShape part = part_shape(s, at);
  const AttentionStrides strides = s.row_strides();
  GraphBuilder builder(s, math, part);
  const TensorPtr q = builder.heads(uid_q, part.heads, strides.q);
  const TensorPtr k = builder.heads(uid_k, part.kv_heads, strides.k);
  const TensorPtr v = builder.heads(uid_v, part.kv_heads, strides.v);
  const TensorPtr out = builder.heads(uid_out, part.heads, strides.out);
  const TensorPtr out_gradient = builder.heads(uid_out_gradient, part.heads, strides.out);
  Tensor_attributes log_sum;
  const TensorPtr statistics = builder.graph().tensor(builder.statistics(log_sum));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention backward")
                     .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                     .set_diagonal_band_right_bound(0)
                     .set_attn_scale(score_scale(s))
                     .set_deterministic_algorithm(math.deterministic);
  const auto [d_q, d_k, d_v] =
      builder.graph().sdpa_backward(q, k, v, out, out_gradient, statistics, std::move(options));
  builder.output(d_q, uid_q_gradient, part.heads, strides.q_gradient);
  builder.output(d_k, uid_k_gradient, part.kv_heads, strides.k_gradient);
  builder.output(d_v, uid_v_gradient, part.kv_heads, strides.v_gradient);
  return builder.finish(target, attention_workspace(s, math));
}

class PreparedAttention final : public CudnnAttention {
 public:
  PreparedAttention(const AttentionShape& shape, const CudaMath& math, const Target& target)
      : handle_(target.handle),
        forward_(forward_graph(shape, math, target)),
        backward_(backward_graph(shape, math, attention_backward_part(shape, math), target)) {}

  [[nodiscard]] AttentionEngines engines() const override {
    return {.forward = engine_of(*forward_),
            .backward = engine_of(*backward_),
            .workspace = std::max(workspace_of(*forward_), workspace_of(*backward_))};
  }

  void forward(const AttentionForwardArguments& a, void* stream) override {
    Addresses addresses{{uid_q, address(a.q)},
                        {uid_k, address(a.k)},
                        {uid_v, address(a.v)},
                        {uid_out, address(a.out)},
                        {uid_log_sum, a.log_sum.address()}};
    run(*forward_, addresses, a.workspace, stream);
  }

  void backward(const AttentionBackwardArguments& a, void* stream) override {
    Addresses addresses{{uid_q, address(a.q)},
                        {uid_k, address(a.k)},
                        {uid_v, address(a.v)},
                        {uid_out, address(a.out)},
                        {uid_out_gradient, address(a.out_gradient)},
                        {uid_log_sum, const_cast<float*>(a.log_sum.address())},
                        {uid_q_gradient, address(a.q_gradient)},
                        {uid_k_gradient, address(a.k_gradient)},
                        {uid_v_gradient, address(a.v_gradient)}};
    run(*backward_, addresses, a.workspace, stream);
  }

 private:
  static std::string engine_of(const Graph& graph) {
    std::string name;
    expect_good(graph.get_plan_name(name), "asking for its engine");
    return name;
  }
  static Bytes workspace_of(const Graph& graph) {
    std::int64_t bytes = 0;
    expect_good(graph.get_workspace_size(bytes), "asking for its workspace");
    return Bytes{static_cast<std::uint64_t>(bytes)};
  }

  template <class View>
  static void* address(const HeadRows<View>& rows) {
    return const_cast<std::byte*>(rows.data.address());
  }

  void run(const Graph& graph, Addresses& addresses, Tensor workspace, void* stream) const {
    SPILLWAY_ASSERT(handle_ != nullptr);  // what is prepared for a described device cannot run
    const auto first = std::bit_cast<std::uintptr_t>(workspace.address());
    std::byte* aligned = workspace.address() + (round_up(first, kWorkspaceAlignment) - first);
    const cudnnStatus_t bound = fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream));
    if (bound != CUDNN_STATUS_SUCCESS) {
      throw Error(ErrorCode::device_error,
                  "cuDNN does not take the stream of the model's operations:" +
                      reason_of_library() + cause_in_cuda(nullptr));
    }
    const fe::error_t status = graph.execute(handle_, addresses, aligned);
    if (status.is_good()) [[likely]] {
      return;
    }
    throw Error(ErrorCode::device_error,
                fmt::format("cuDNN's attention failed: {}{}{}", fe::error_t(status).get_message(),
                            reason_of_library(), cause_in_cuda(static_cast<cudaStream_t>(stream))));
  }

  cudnnHandle_t handle_;
  std::unique_ptr<Graph> forward_, backward_;
};

}  // namespace

struct Cudnn::State {
  SharedLibrary library;
  cudnnStatus_t (*destroy)(cudnnHandle_t) = nullptr;  ///< not the frontend's, which may throw
  Target target{};
  frontend::DeviceFacts facts{};  ///< of a described device
};

namespace {

/// Loads the runtime compiler that cuDNN's engines are built with, where it lies beside the other
/// libraries: it opens its builtins by their bare name, which the dynamic linker finds only if they
/// are loaded already. Where it lies in the linker's own places there is nothing to do.
void load_compiler(std::span<const std::filesystem::path> directories) {
  for (const std::filesystem::path& directory : directories) {
    std::error_code ignored;
    if (directory.empty() || !std::filesystem::exists(directory / kCompilerName, ignored)) continue;
    for (std::filesystem::directory_iterator file(directory, ignored), end; !ignored && file != end;
         file.increment(ignored)) {
      const std::string name = file->path().filename().string();
      if (!name.starts_with(kCompilerBuiltins)) continue;
      const SharedLibrary builtins(name, {&directory, 1}, kCudnnRemedy);
    }
    const SharedLibrary compiler(kCompilerName, {&directory, 1}, kCudnnRemedy);
    return;
  }
}

SharedLibrary load_cudnn(std::span<const std::filesystem::path> directories) {
  load_compiler(directories);
  SharedLibrary library("libcudnn.so.9", directories, kCudnnRemedy, reason_against_cudnn);
  fe::cudnn_dlhandle = library.native();
  return library;
}

}  // namespace

Cudnn::Cudnn(std::span<const std::filesystem::path> directories)
    : state_(std::make_unique<State>(State{.library = load_cudnn(directories)})) {
  state_->destroy = state_->library.function<cudnnStatus_t(cudnnHandle_t)>("cudnnDestroy");
  const cudnnStatus_t status = fe::detail::create_handle(&state_->target.handle);
  if (status != CUDNN_STATUS_SUCCESS) {
    throw Error(ErrorCode::device_error,
                fmt::format("cuDNN {} does not start: {}{}{}", state_->library.path(),
                            fe::detail::get_error_string(status), reason_of_library(),
                            cause_in_cuda(nullptr)),
                static_cast<int>(status));
  }
}

Cudnn::Cudnn(std::span<const std::filesystem::path> directories, const DescribedDevice& device)
    : state_(std::make_unique<State>(State{.library = load_cudnn(directories)})) {
  constexpr const char* kOrigin = "the description of a device";
  const auto refused = [&](const std::string& reason) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not one that cuDNN reads: {}{}",
                                                         kOrigin, reason, reason_of_library()));
  };
  const std::string& text = device.properties;
  const nlohmann::json facts =
      parse_json(text, {.origin = kOrigin, .code = ErrorCode::invalid_argument});
  try {
    state_->facts = {.major = facts.at("deviceVer").get<int>() / 100,
                     .multiprocessors = facts.at("multiProcessorCount").get<int>()};
  } catch (const nlohmann::json::exception& error) {
    refused(error.what());
  }
  auto properties = std::make_shared<fe::DeviceProperties>();
  fe::error_t status = properties->deserialize(std::vector<std::uint8_t>(text.begin(), text.end()));
  if (status.is_bad()) refused(status.get_message());
  state_->target.described = std::move(properties);
}

Cudnn::~Cudnn() {
  if (state_->target.handle == nullptr) return;
  if (state_->destroy(state_->target.handle) != CUDNN_STATUS_SUCCESS) {
    log_warning("cuDNN did not stop");
  }
}

std::size_t Cudnn::version() const { return fe::detail::get_backend_version(); }

std::unique_ptr<CudnnAttention> Cudnn::prepare(const AttentionShape& shape,
                                               const CudaMath& math) const {
  const bool described = state_->target.described != nullptr;
  const frontend::DescribedScope scope(described ? &state_->facts : nullptr);
  try {
    return std::make_unique<PreparedAttention>(shape, math, state_->target);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    refuse(error.what());
  }
}

}  // namespace spillway::model::cuda
