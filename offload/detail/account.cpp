#include "offload/detail/account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace spillway::offload::detail {
namespace {

std::string exact(Bytes bytes) {
  return fmt::format("{} ({} bytes)", format_bytes(bytes), bytes.value());
}

std::string_view noun_of(MemoryKind kind) {
  return kind == MemoryKind::device ? "device" : "pinned host";
}

std::string_view remedy_for(MemoryKind kind) {
  return kind == MemoryKind::device
             ? "raise --device-memory or lower the micro-batch size"
             : "raise --host-memory or put optimizer state on disk with --nvme";
}

}  // namespace

Account::Account(MemoryKind kind, Bytes capacity)
    : kind_(kind), usage_{.current = {}, .high_water = {}, .capacity = capacity} {}

std::uint32_t Account::take(Bytes size) {
  const Lock lock(mutex_);
  if (size > usage_.capacity - usage_.current) {
    throw Error(
        ErrorCode::out_of_memory,
        fmt::format("{} memory is full: asked for {}, {} of {} in use; {}", noun_of(kind_),
                    exact(size), exact(usage_.current), exact(usage_.capacity), remedy_for(kind_)));
  }
  usage_.current += size;
  usage_.high_water = std::max(usage_.high_water, usage_.current);
  return number_++;
}

void Account::give_back(Bytes size) noexcept {
  const Lock lock(mutex_);
  SPILLWAY_ASSERT(size <= usage_.current);
  usage_.current -= size;
}

void Account::refuse(Bytes size, const Refusal& refusal) {
  give_back(size);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("the system refused {} of {} memory ({}) with {} of {} in use; {}",
                          exact(size), noun_of(kind_), refusal.reason, exact(usage().current),
                          exact(usage().capacity), refusal.remedy),
              refusal.native);
}

MemoryUsage Account::usage() const {
  const Lock lock(mutex_);
  return usage_;
}

}  // namespace spillway::offload::detail
