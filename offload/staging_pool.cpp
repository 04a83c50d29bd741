#include "offload/staging_pool.hpp"

#include <algorithm>

namespace spillway::offload {

std::span<std::byte> StagingLease::bytes() const {
  SPILLWAY_ASSERT(pool_ != nullptr);
  return pool_->bytes_of(slot_);
}

void StagingLease::release() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->give_back(slot_);
}

StagingPool::StagingPool(DeviceBackend& backend, const StagingPoolOptions& options)
    : options_(options), storage_(backend, storage_bytes(options)) {
  free_.reserve(options.slots);
  for (std::uint32_t slot = options.slots; slot > 0; --slot) free_.push_back(slot - 1);
}

StagingPool::~StagingPool() { SPILLWAY_ASSERT(free_.size() == options_.slots); }

Bytes StagingPool::storage_bytes(const StagingPoolOptions& options) {
  check(options.slots > 0 && options.slot_bytes > Bytes{}, ErrorCode::invalid_argument,
        "a staging pool needs at least one buffer of at least one byte");
  const Bytes stride{round_up(options.slot_bytes.value(), kPageBytes)};
  return (options.slots - 1) * stride + options.slot_bytes;
}

Bytes StagingPool::slot_stride() const {
  return Bytes{round_up(options_.slot_bytes.value(), kPageBytes)};
}

std::optional<StagingLease> StagingPool::try_lease() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  high_water_ = std::max(high_water_, usage().current);
  return StagingLease(*this, slot);
}

StagingPoolUsage StagingPool::usage() const {
  return {.current = options_.slots - static_cast<std::uint32_t>(free_.size()),
          .high_water = high_water_,
          .slots = options_.slots};
}

std::span<std::byte> StagingPool::bytes_of(std::uint32_t slot) const {
  return storage().subspan(slot * slot_stride().value(), options_.slot_bytes.value());
}

void StagingPool::give_back(std::uint32_t slot) noexcept {
  SPILLWAY_ASSERT(free_.size() < options_.slots);
  free_.push_back(slot);  // within the capacity reserved at construction
}

}  // namespace spillway::offload
