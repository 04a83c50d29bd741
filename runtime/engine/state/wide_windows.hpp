// WideWindows: any range of a state that can be read in whole leaves only. Keeps the last window of
// it, since ranges that are asked for follow each other. One call at a time.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cpu_adam/state_format.hpp"
#include "runtime/base/units.hpp"

namespace spillway::engine {

class WideWindows {
 public:
  /// Reads what `wide` wants of a block, whole leaves from a multiple of `kLeafParameters` on;
  /// values behind the block are zero.
  using Load =
      std::function<void(BlockIndex block, ElementCount first, const cpu_adam::WideState& wide)>;
  static constexpr std::size_t kParameters = 64 * kLeafParameters;
  static constexpr Bytes kBytes{3 * kParameters * sizeof(float)};

  explicit WideWindows(Load load) : load_(std::move(load)) {}

  /// Reads `wide.master.size()` parameters, and their moments where `wide` wants them.
  void read(BlockIndex block, ElementCount first, const cpu_adam::WideState& wide);

 private:
  struct Window {
    BlockIndex block;
    std::uint64_t first = 0;
    bool moments = false;
  };
  /// Makes the window hold the parameter `at`, with moments where `wanted` has some.
  void load(BlockIndex block, std::uint64_t at, const cpu_adam::WideState& wanted);

  Load load_;
  std::optional<Window> window_;
  std::vector<float> values_;  ///< [master | m | v] of the window
};

}  // namespace spillway::engine
