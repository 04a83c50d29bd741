// Flash attention of cuDNN: graphs built and their engines chosen when a shape is planned.
//
// A call enqueues on its stream. cuDNN's frontend and library make small allocations of host memory
// in it, as oneDNN does; none of device memory. The engine of a shape is cuDNN's own first choice
// among those within the workspace that workspace.hpp promises, and depends on the GPU model and
// cuDNN's version only. Forward has one order of sums; backward is asked for one too unless
// `deterministic` is off. log_sum is the natural logarithm of the sum of exponentials of the scaled
// scores.
// Threads: those of Ops.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "runtime/model/cuda/workspace.hpp"

namespace spillway::model::cuda {

/// What cuDNN has chosen for one shape.
struct AttentionEngines {
  std::string forward, backward;  ///< cuDNN's names of the engines, with their settings
  Bytes workspace;                ///< the larger of what both need
};

/// Graphs of one shape: forward's for a whole call, backward's for a part of one
/// (`attention_backward_part`).
class CudnnAttention {
 public:
  virtual ~CudnnAttention() = default;
  [[nodiscard]] virtual AttentionEngines engines() const = 0;
  virtual void forward(const AttentionForwardArguments& arguments, void* stream) = 0;
  /// Takes the arguments of a part: see attention_parts.hpp.
  virtual void backward(const AttentionBackwardArguments& arguments, void* stream) = 0;
};

/// Describes a GPU that this machine need not have.
struct DescribedDevice {
  std::string properties;  ///< JSON, as cuDNN's frontend serializes `DeviceProperties`
};

class Cudnn {
 public:
  /// Loads libcudnn.so.9 and starts it on the current device. Throws `Error{not_supported}` if it
  /// is missing, `Error{device_error}` if it does not start.
  explicit Cudnn(std::span<const std::filesystem::path> directories);
  /// Loads the library and starts nothing: what it prepares is for `device` and cannot run. Throws
  /// `Error{not_supported}` if the library is missing, `Error{invalid_argument}` for properties
  /// that the frontend does not read.
  Cudnn(std::span<const std::filesystem::path> directories, const DescribedDevice& device);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  /// Returns 91900 for 9.19.0.
  [[nodiscard]] std::size_t version() const;
  /// Throws `Error{not_supported}` with cuDNN's reason if it cannot attend so within the workspace.
  /// This outlives the result.
  [[nodiscard]] std::unique_ptr<CudnnAttention> prepare(const AttentionShape& shape,
                                                        const CudaMath& math) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace spillway::model::cuda
