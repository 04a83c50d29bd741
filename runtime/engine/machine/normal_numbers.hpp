// What measured operations find in memory: normal numbers, the same each time. Zeros would not do:
// a GPU computes them at higher clocks, as fewer bits change. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "offload/memory.hpp"
#include "runtime/base/dtype.hpp"
#include "runtime/config/train_options.hpp"

namespace spillway::engine {

/// How many numbers memory repeats: a prime, so that rows of round lengths differ. Every start of a
/// run waits while they are made.
inline constexpr std::uint64_t kRepeatedNumbers = 131'071;

/// Fills `target` with numbers of a deviation of 1/8: sums of 100,000 products stay far below
/// fp16's largest value.
void write_normal_numbers(std::span<std::byte> target, DType type);
/// Fills `target` with tokens, drawn alike from the vocabulary. With one token everywhere the
/// gradient of the embedding would be one long sum, for which a GPU has few threads.
void write_random_tokens(std::span<std::byte> target, std::uint32_t vocabulary);
/// Copies `numbers` to the whole of `target`, one after the other.
void repeat(std::span<const std::byte> numbers, std::span<std::byte> target);
/// Copies likewise on the device, in the order of `stream`.
void repeat(std::span<const std::byte> numbers, offload::DeviceSpan<std::byte> target,
            offload::Stream& stream);

/// Numbers of a run's compute type, in memory of their own beside that of the run's budgets.
class NormalNumbers {
 public:
  explicit NormalNumbers(const config::TrainOptions& options);

  void fill(std::span<std::byte> target) const;
  /// Fills memory of the device, and waits until that is done.
  void fill(offload::DeviceSpan<std::byte> target) const;
  /// Clears memory of the device likewise.
  void clear(offload::DeviceSpan<std::byte> target) const;
  /// Fills it with tokens likewise.
  void fill_tokens(offload::DeviceSpan<std::byte> target, std::uint32_t vocabulary) const;

 private:
  std::unique_ptr<offload::DeviceBackend> backend_;
  offload::PinnedMemory numbers_, zeros_, tokens_;
  std::unique_ptr<offload::Stream> stream_;
};

}  // namespace spillway::engine
