#include "runtime/engine/step/memory.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/error.hpp"

namespace spillway::engine {

using offload::DeviceSpan;
using plan::Buffer;
using plan::PoolKind;
using plan::Tier;

namespace {

struct Extent {
  std::size_t offset;
  std::size_t bytes;
};

Extent extent_of(const plan::Pool& pool, const Buffer& buffer) {
  SPILLWAY_ASSERT(buffer.count > 0 && buffer.first + buffer.count <= pool.ends.size());
  const std::uint64_t offset = pool.offset(buffer.first);
  return {.offset = offset, .bytes = pool.ends[buffer.first + buffer.count - 1] - offset};
}

/// Other code uses such memory in place, also in processes that it forks.
bool is_shared(PoolKind kind) {
  return kind == PoolKind::host_parameters || kind == PoolKind::host_frozen;
}

const offload::SharedPages* pages_of(const SharedPools& shared, PoolKind kind) {
  const std::optional<offload::SharedPages>* pages = nullptr;
  if (kind == PoolKind::host_parameters) pages = &shared.parameters;
  if (kind == PoolKind::host_frozen) pages = &shared.frozen;
  return pages != nullptr && *pages && (*pages)->bytes() > Bytes{} ? &**pages : nullptr;
}

void check_bytes(const offload::SharedPages& pages, Bytes wanted) {
  check(pages.bytes() == wanted, ErrorCode::invalid_argument,
        fmt::format("shared pages are {} bytes, and what lies there is {}; give as many",
                    pages.bytes().value(), wanted.value()));
}

}  // namespace

Memory::Memory(plan::Pools pools, offload::DeviceBackend& backend, const SharedPools& shared)
    : pools_(std::move(pools)), backend_(backend) {
  restore_device();
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto kind = static_cast<PoolKind>(p);
    if (const offload::SharedPages* pages = pages_of(shared, kind); pages != nullptr) {
      check_bytes(*pages, pools_[p].bytes());
      host_[p] = offload::PinnedMemory(backend, *pages);
    } else if (plan::tier_of(kind) == Tier::host) {
      allocate(host_[p], backend, pools_[p].bytes());
    }
    if (is_shared(kind)) show_to_children(host_[p]);
  }
}

void Memory::restore_device() {
  std::array<offload::DeviceMemory, plan::kPoolCount> taken;  // goes back where a pool has no room
  for (std::size_t p = 0; p < plan::kPoolCount; ++p) {
    const auto kind = static_cast<PoolKind>(p);
    if (plan::tier_of(kind) != Tier::device || kind == PoolKind::constants) continue;
    allocate(taken[p], backend_, pools_[p].bytes());
  }
  device_ = std::move(taken);
}

void Memory::release_device() noexcept {
  for (offload::DeviceMemory& each : device_) each = {};
}

DeviceSpan<std::byte> Memory::device(const Buffer& buffer) const {
  SPILLWAY_ASSERT(plan::tier_of(buffer.pool) == Tier::device);
  const auto [offset, bytes] = extent_of(pool(buffer.pool), buffer);
  return device_[static_cast<std::size_t>(buffer.pool)].device().subspan(offset, bytes);
}

std::span<std::byte> Memory::host(const Buffer& buffer) const {
  SPILLWAY_ASSERT(plan::tier_of(buffer.pool) == Tier::host);
  const auto [offset, bytes] = extent_of(pool(buffer.pool), buffer);
  return host_[static_cast<std::size_t>(buffer.pool)].host().subspan(offset, bytes);
}

DeviceSpan<std::byte> Memory::all_device(PoolKind pool) const {
  return device_[static_cast<std::size_t>(pool)].device();
}

std::span<std::byte> Memory::all_host(PoolKind pool) const {
  return host_[static_cast<std::size_t>(pool)].host();
}

offload::DeviceMemory Memory::take_device(PoolKind pool) {
  return std::move(device_[static_cast<std::size_t>(pool)]);
}

offload::PinnedMemory Memory::take_host(PoolKind pool) {
  return std::move(host_[static_cast<std::size_t>(pool)]);
}

}  // namespace spillway::engine
