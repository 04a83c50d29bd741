// TileStore: the state of every tile on disk, in slots; the only owner of swap files.
//
// A tile has two or more slots. A write goes to a slot that holds neither the committed nor the
// newest version, so nothing that recovery may need is ever overwritten. A commit record, in one of
// two alternating checksummed areas, makes a set of slots true. Recovery takes the newest valid
// record. Control thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nvme_swap/io_engine.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/units.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::nvme_swap {

struct StoreOptions {
  std::vector<std::filesystem::path> directories;  ///< one swap file in each; tiles striped over them
  EngineKind engine = EngineKind::automatic;
  std::size_t queue_depth = 32;
  Bytes transfer_bytes{1 << 20};  ///< a tile moves in pieces of this size
  std::uint32_t slots = 2;        ///< per tile; 3 when a commit may be older than the newest write
  std::size_t tickets = 256;      ///< tile operations pending at once
  WakeSignal* wake = nullptr;
  std::optional<double> disk_gigabytes_per_second;  ///< throttle, for tests and simulation
};

/// Payload bytes of each tile, multiples of `kPageBytes`, fixed when the store is created.
struct StoreLayout {
  std::vector<Bytes> tiles;
};

/// What a commit records beside the slots and checksums of all tiles.
struct CommitHeader {
  StepIndex step;
  /// The engine's own words (counters, loss scale, data cursor), at most `kMaxCommitPayload` bytes.
  std::vector<std::byte> payload;
};
inline constexpr std::size_t kMaxCommitPayload = 2048;

struct StoreCounters {
  Bytes read;
  Bytes written;
  std::uint64_t commits = 0;
};

class TileStore final : public TicketSource {
 public:
  /// Creates the swap files (0600, O_EXCL|O_NOFOLLOW, preallocated, locked). Throws `Error{busy}` if
  /// another process holds them, `Error{does_not_fit}` if the disk lacks the space.
  [[nodiscard]] static std::unique_ptr<TileStore> create(const StoreOptions& options,
                                                         const StoreLayout& layout);
  /// Opens an existing store and recovers its newest valid commit. Throws `Error{corrupt_data}`
  /// when a record or the layout is not what was written.
  [[nodiscard]] static std::unique_ptr<TileStore> open(const StoreOptions& options);
  /// True if `directories[0]` holds a store that has a committed step.
  [[nodiscard]] static bool has_commit(const StoreOptions& options);
  ~TileStore();

  [[nodiscard]] const StoreLayout& layout() const;
  /// The last durable commit; empty before the first.
  [[nodiscard]] const std::optional<CommitHeader>& committed() const;

  /// Reads the newest version of `tile` into `target` (page aligned, the tile's size). The bytes
  /// are not verified until `verify`, which may run on any thread once the ticket is finished.
  [[nodiscard]] Ticket read(TileIndex tile, std::span<std::byte> target);
  /// Throws `Error{corrupt_data}` naming file, tile and both checksums unless `data` is the newest
  /// version of `tile`.
  void verify(TileIndex tile, std::span<const std::byte> data) const;
  /// Writes a new version. `checksum` is `checksum_of(source)`; the version is the newest, for reads
  /// and the next commit, once the ticket is finished.
  [[nodiscard]] Ticket write(TileIndex tile, std::span<const std::byte> source,
                             std::uint64_t checksum);
  /// Makes all finished writes durable, then the record that names them. No write may be pending.
  [[nodiscard]] Ticket commit(const CommitHeader& header);

  [[nodiscard]] StoreCounters counters() const;

  [[nodiscard]] bool ready(std::uint32_t slot) override;
  void finish(std::uint32_t slot) override;

 private:
  class Implementation;
  explicit TileStore(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

/// XXH3-64 of a tile's payload.
[[nodiscard]] std::uint64_t checksum_of(std::span<const std::byte> data);

}  // namespace spillway::nvme_swap
