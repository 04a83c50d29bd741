// TileStore: the state of every tile on disk, in slots; the only owner of swap files.
//
// A tile has two or more slots, or one in a store that is committed once and read from then on (a
// kept checkpoint). A write goes to a slot that holds neither the committed nor the
// newest version, so nothing that recovery may need is ever overwritten. A commit record, in one of
// two alternating checksummed areas, makes a set of slots true. Recovery takes the newest valid
// record. The files are described in nvme_swap/format.hpp. Control thread only.
//
// Which slot a write takes, exactly: one that is not newest, not committed and not part of a commit
// in progress. If there is none and the newest version is neither committed nor being committed
// (a second write since the last commit, with two slots), that version is overwritten: from then
// until the write has finished well the tile has no newest version and cannot be read. Otherwise
// the operation starts by itself when the commit has ended. A slot is never written while a read
// of it is pending.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme_swap/checksum.hpp"
#include "nvme_swap/io_engine.hpp"
#include "nvme_swap/mapped_tiles.hpp"
#include "runtime/base/run_id.hpp"
#include "runtime/base/ticket.hpp"
#include "runtime/base/units.hpp"
#include "runtime/base/wake_signal.hpp"

namespace spillway::nvme_swap {

enum class CacheUse : std::uint8_t {
  bypass,  ///< O_DIRECT, or buffered with a note where the filesystem has none
  always,  ///< buffered
};

struct StoreOptions {
  std::vector<std::filesystem::path>
      directories;              ///< one swap file in each; tiles striped over them
  std::vector<double> weights;  ///< of the directories: the share of the tiles that a new store
                                ///< puts into each, by measured bandwidth; all the same if empty
  std::string name = "tiles";   ///< of the files; differs between stores that share a directory
  /// The run whose state the store holds, written into every file by `create`. Files of another run
  /// are refused on opening. A store for which none is given belongs to no run and opens whatever
  /// the files say.
  std::optional<RunId> owner;
  EngineKind engine = EngineKind::automatic;
  std::size_t queue_depth = 32;
  Bytes transfer_bytes{4 << 20};  ///< a tile moves in pieces of this size: of 4 MiB, in huge pages,
                                  ///< a virtual disk took a third of the CPU time that 1 MiB took
  std::uint32_t slots = 2;        ///< per tile; 3 when a commit may be older than the newest write,
                                  ///< 1 when nothing is written after the first commit.
                                  ///< An existing store keeps the number it was created with.
  std::size_t tickets = 256;      ///< tile operations pending at once
  WakeSignal* wake = nullptr;
  /// Memory that tiles are read into and written from, if it is known at start; see EngineOptions.
  std::vector<std::span<std::byte>> buffers;
  UringOptions uring;
  std::optional<double> disk_gigabytes_per_second;  ///< throttle, for tests and simulation
  CacheUse cache = CacheUse::bypass;
  bool remove_on_close = false;  ///< the files go with the store: no resume is wanted
  /// A killed process may hold its lock until its writes in flight are over.
  std::chrono::milliseconds lock_patience{10'000};
  /// Puts an adaptor around the engine; for tests.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>, const EngineOptions&)> adapt;
};

/// Payload bytes of each tile, multiples of `kPageBytes`, fixed when the store is created.
struct StoreLayout {
  std::vector<Bytes> tiles;
};

/// What lies where a store is looked for.
enum class StoreContent : std::uint8_t {
  nothing,      ///< no first file
  unfinished,   ///< a first file without a header: a creation that was cut off
  uncommitted,  ///< a whole store without a committed step
  committed,
};

/// What a commit records beside the slots and checksums of all tiles.
struct CommitHeader {
  StepIndex step{};
  /// The engine's own words (counters, loss scale, data cursor), at most `kMaxCommitPayload` bytes.
  std::vector<std::byte> payload{};
};

/// Tile payload of operations that finished well. Records and headers are not counted.
struct StoreCounters {
  Bytes read;
  Bytes written;
  std::uint64_t commits = 0;
};

class TileStore final : public TicketSource {
 public:
  /// Creates the swap files (0600, O_EXCL|O_NOFOLLOW, preallocated, locked). Files that a run left
  /// before its first commit are replaced; a store with a committed step is refused with
  /// `Error{invalid_argument}`. Throws `Error{busy}` if another process holds them,
  /// `Error{does_not_fit}` if the disk lacks the space.
  [[nodiscard]] static std::unique_ptr<TileStore> create(const StoreOptions& options,
                                                         const StoreLayout& layout);
  /// Opens a store that has a committed step and recovers the newest valid one. Throws
  /// `Error{corrupt_data}` naming file and remedy for anything else: a file that is missing, empty,
  /// cut short, blank, damaged or another run's, or a store without a commit.
  [[nodiscard]] static std::unique_ptr<TileStore> open(const StoreOptions& options);
  /// Opens the store at the committed step `at`: the newest, or the one before it, of which tiles
  /// can be read and none written until `go_back`. A store among those of many ranks may have
  /// committed a step that another has not. Throws `Error{corrupt_data}` that names both steps if
  /// it has neither.
  [[nodiscard]] static std::unique_ptr<TileStore> open_at(const StoreOptions& options,
                                                          StepIndex at);
  /// Returns what `create` would find in `directories[0]`, for a run without a record of a commit.
  /// A run with such a record calls `open`, which takes nothing for a fresh start. Takes no lock,
  /// and so also answers for a store in use. Throws `Error{corrupt_data}` if the store cannot tell.
  [[nodiscard]] static StoreContent content(const StoreOptions& options);
  /// Whether `content` is a committed store.
  [[nodiscard]] static bool has_commit(const StoreOptions& options) {
    return content(options) == StoreContent::committed;
  }
  /// Removes the files of a store that was never committed, if there is one: a process that was
  /// killed has left them. Refuses what `create` refuses.
  static void remove_uncommitted(const StoreOptions& options);
  /// No ticket of the store may outlive it.
  ~TileStore();

  [[nodiscard]] const StoreLayout& layout() const;
  [[nodiscard]] std::string_view engine_name() const;
  [[nodiscard]] EngineAbilities engine_abilities() const;
  /// Makes the commit of `open_at` the newest for good; the one after it is gone. No effect if it
  /// is the newest.
  void go_back();

  /// The last durable commit; empty before the first.
  [[nodiscard]] const std::optional<CommitHeader>& committed() const;

  /// Reads the newest version of `tile` into `target` (page aligned, the tile's size). The bytes
  /// are not verified until `verify`, which may run on any thread once the ticket is finished.
  [[nodiscard]] Ticket read(TileIndex tile, std::span<std::byte> target);
  /// Throws `Error{corrupt_data}` naming file, tile and both checksums unless `data` is the newest
  /// version of `tile`.
  void verify(TileIndex tile, std::span<const std::byte> data) const;
  /// Verifies likewise data that has this `checksum_of`.
  void verify(TileIndex tile, std::uint64_t checksum) const;
  /// Writes a new version. `checksum` is `checksum_of(source)`; the version is the newest, for
  /// reads and the next commit, once the ticket is finished. One write of a tile may be pending.
  /// Throws `Error{not_supported}` for a store of one slot that has been committed.
  /// After a failed write the tile keeps its newest version, if that was not being overwritten.
  [[nodiscard]] Ticket write(TileIndex tile, std::span<const std::byte> source,
                             std::uint64_t checksum);
  /// Forgets the versions of `tile` that are not committed: its newest version is the committed one
  /// again. Costs no I/O. Nothing of the tile, and no commit, may be pending.
  void discard(TileIndex tile);
  /// Makes all finished writes durable, then the record that names them. No write may be pending,
  /// no tile may be left by a failed write, and one commit may be pending. Writes may start while
  /// it is. If a commit fails, the disk may hold either step: the store then refuses writes and
  /// commits, and opening it again recovers one of the two.
  [[nodiscard]] Ticket commit(const CommitHeader& header);

  /// Maps the tiles of a store of one slot. Of a tile that is written again, pages that nobody has
  /// written in the mapping are the new ones, once the write has finished.
  [[nodiscard]] MappedTiles map() const;
  /// Throws `Error{corrupt_data}` naming the file unless the path of every swap file still leads to
  /// the file that the store has open, in its full length. What is written to a file that was
  /// removed or replaced is lost when the store is closed. Costs two system calls a file, and no
  /// allocation.
  void check_present() const;
  [[nodiscard]] StoreCounters counters() const;

  [[nodiscard]] bool ready(std::uint32_t slot) override;
  void finish(std::uint32_t slot) override;

 private:
  class Implementation;
  explicit TileStore(std::unique_ptr<Implementation> implementation);
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace spillway::nvme_swap
