// The all-reduces that others use, made of Communicator's transfers between two ranks: what its own
// is compared with. Called by the control thread of every rank; each blocks until it is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/communicator.hpp"

namespace spillway::comm {

/// Pattern of transfers, for N ranks and S bytes. `each_to_all`: a rank sends (N - 1) S. `master`:
/// a worker sends S to rank 0, the parameter server, which sends (N - 1) S back. `ring`: a rank
/// sends 2 (N - 1) / N S.
enum class Baseline : std::uint8_t { each_to_all, master, ring };
inline constexpr Baseline kBaselines[] = {Baseline::each_to_all, Baseline::master, Baseline::ring};

[[nodiscard]] std::string_view name_of(Baseline baseline);

/// Returns bytes of scratch memory that `all_reduce` needs for `bytes` bytes of data.
[[nodiscard]] std::size_t scratch_bytes(Baseline baseline, std::size_t bytes, std::uint32_t ranks);

/// Sums `data` over all ranks, in place. The sums of `each_to_all` and `master` have the bits of
/// Communicator::all_reduce. Those of a ring differ: it adds each part in another order of ranks,
/// and rounds it at every rank. Even so all ranks get the same bits.
void all_reduce(Baseline baseline, Communicator& communicator, std::span<std::byte> data,
                std::span<std::byte> scratch, DType dtype);

}  // namespace spillway::comm
