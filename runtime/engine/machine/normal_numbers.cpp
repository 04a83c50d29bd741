#include "runtime/engine/machine/normal_numbers.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/random.hpp"
#include "runtime/engine/device/compute_device.hpp"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kSeed = 0;
constexpr std::uint64_t kNumberStream = 0x70726f64;
constexpr double kDeviation = 0.125;
constexpr std::uint64_t kTokenStream = 0x746f6b73;
constexpr Bytes kZeros{std::uint64_t{64} << 10};
constexpr Bytes kTokens{std::uint64_t{64} << 10};

Bytes bytes_of(const config::TrainOptions& options) {
  return Bytes{kRepeatedNumbers * size_of(options.compute)};
}

std::unique_ptr<offload::DeviceBackend> staging(config::TrainOptions options) {
  options.host_link_gbps.reset();  // the link of the run is not what fills its memory here
  return make_backend(
      options, {.device = {}, .host = bytes_of(options) + kZeros + kTokens, .nvme = {}}, nullptr);
}

}  // namespace

void write_normal_numbers(std::span<std::byte> target, DType type) {
  const std::uint64_t count = target.size() / size_of(type);
  std::array<double, 2> pair{};
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i % 2 == 0) pair = normal_pair(random_block(kSeed, {kNumberStream, i / 2}));
    const auto value = static_cast<float>(kDeviation * pair[i % 2]);
    std::byte* const place = target.data() + i * size_of(type);
    if (type == DType::fp32) {
      std::memcpy(place, &value, sizeof value);
    } else {
      const std::uint16_t bits = type == DType::bf16 ? to_bf16(value) : to_fp16(value);
      std::memcpy(place, &bits, sizeof bits);
    }
  }
}

void write_random_tokens(std::span<std::byte> target, std::uint32_t vocabulary) {
  for (std::uint64_t i = 0; i < target.size() / sizeof(std::int32_t); ++i) {
    const std::uint64_t bits = as_u64(random_block(kSeed, {kTokenStream, i / 2}))[i % 2];
    const auto token = static_cast<std::int32_t>(uniform_below(bits, vocabulary));
    std::memcpy(target.data() + i * sizeof token, &token, sizeof token);
  }
}

void repeat(std::span<const std::byte> numbers, std::span<std::byte> target) {
  for (std::size_t first = 0; first < target.size(); first += numbers.size()) {
    const std::size_t count = std::min(numbers.size(), target.size() - first);
    std::memcpy(target.data() + first, numbers.data(), count);
  }
}

void repeat(std::span<const std::byte> numbers, offload::DeviceSpan<std::byte> target,
            offload::Stream& stream) {
  for (std::size_t first = 0; first < target.size(); first += numbers.size()) {
    const std::size_t count = std::min(numbers.size(), target.size() - first);
    stream.upload(target.subspan(first, count), numbers.first(count));
  }
}

NormalNumbers::NormalNumbers(const config::TrainOptions& options)
    : backend_(staging(options)),
      numbers_(*backend_, bytes_of(options)),
      zeros_(*backend_, kZeros),
      tokens_(*backend_, kTokens),
      stream_(backend_->make_stream("numbers")) {
  write_normal_numbers(numbers_.host(), options.compute);
  std::ranges::fill(zeros_.host(), std::byte{0});
}

void NormalNumbers::fill(std::span<std::byte> target) const { repeat(numbers_.host(), target); }

void NormalNumbers::fill(offload::DeviceSpan<std::byte> target) const {
  repeat(numbers_.host(), target, *stream_);
  stream_->synchronize();
}

void NormalNumbers::clear(offload::DeviceSpan<std::byte> target) const {
  repeat(zeros_.host(), target, *stream_);
  stream_->synchronize();
}

void NormalNumbers::fill_tokens(offload::DeviceSpan<std::byte> target,
                                std::uint32_t vocabulary) const {
  write_random_tokens(tokens_.host(), vocabulary);
  repeat(tokens_.host(), target, *stream_);
  stream_->synchronize();
}

}  // namespace spillway::engine
