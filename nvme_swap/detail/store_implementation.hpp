// The running tile store: tickets, the commit's state machine and the files it owns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/detail/store_files.hpp"
#include "nvme_swap/detail/store_recovery.hpp"
#include "nvme_swap/detail/tile_versions.hpp"
#include "nvme_swap/detail/transfer_queue.hpp"
#include "nvme_swap/tile_store.hpp"

namespace spillway::nvme_swap {

/// Control thread only. Everything is sized at construction; operations allocate nothing.
class TileStore::Implementation {
 public:
  Implementation(const StoreOptions& options, detail::StoreFiles store);
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;
  ~Implementation();

  /// Opens as TileStore::open or open_at.
  [[nodiscard]] static std::unique_ptr<Implementation> open(const StoreOptions& options,
                                                            std::optional<StepIndex> at);

  /// Writes headers and empty records; the store exists when this returns.
  void format(const StoreOptions& options);
  void recover(const detail::Recovered& recovered);
  /// Makes the recovered commit the newest, where it is not, by writing it over the other one, with
  /// the generation after that. A kill leaves one record or the other whole, and the commit in
  /// either case.
  void go_back();
  /// Makes what was recovered durable. Its writer may have been killed between the record and its
  /// flush: the next write could go to a slot of the commit before, and a power cut then take the
  /// record, so that neither commit would be whole.
  void make_durable();
  void keep_files(bool keep);
  void check_present() const;

  [[nodiscard]] const StoreLayout& layout() const { return layout_; }
  [[nodiscard]] const std::optional<CommitHeader>& committed() const { return committed_; }
  [[nodiscard]] const StoreCounters& counters() const { return counters_; }
  [[nodiscard]] std::string_view engine_name() const { return engine_->name(); }
  [[nodiscard]] EngineAbilities engine_abilities() const { return engine_->abilities(); }

  /// Return the ticket's slot.
  [[nodiscard]] std::uint32_t read(TileIndex tile, std::span<std::byte> target);
  [[nodiscard]] std::uint32_t write(TileIndex tile, std::span<const std::byte> source,
                                    std::uint64_t checksum);
  [[nodiscard]] std::uint32_t commit(const CommitHeader& header);
  void verify(TileIndex tile, std::span<const std::byte> data) const;
  void verify(TileIndex tile, std::uint64_t checksum) const;
  void discard(TileIndex tile);
  [[nodiscard]] MappedTiles map() const;

  [[nodiscard]] bool ready(std::uint32_t slot);
  void finish(std::uint32_t slot);

 private:
  enum class Kind : std::uint8_t { free, plain, read, write, commit };
  enum class Stage : std::uint8_t {
    data_flush,
    record_write,
    record_flush,
    twin_write,  // the first commit goes to both areas
    twin_flush,
  };
  struct Operation {
    Kind kind = Kind::free;
    bool over = false;
    TileIndex tile{};
    std::uint32_t slot = kNoSlot;  // of the tile
    std::byte* data = nullptr;
    std::uint64_t checksum = 0;
    std::optional<detail::IoFailure> failure{};
  };

  [[nodiscard]] std::uint32_t take_operation(Kind kind);
  void check_usable() const;
  void start_transfer(std::uint32_t ticket, IoOperation operation, std::uint32_t file,
                      std::uint64_t offset, std::span<std::byte> data);
  void start_slot_transfer(std::uint32_t ticket, IoOperation operation);
  void transfer_now(IoOperation operation, std::uint32_t file, std::uint64_t offset,
                    std::span<std::byte> data);

  void pump();
  void take_outcome(const detail::JobOutcome& outcome);
  [[nodiscard]] bool try_start_write(std::uint32_t ticket);
  void start_deferred();
  void advance_commit();
  void start_stage(Stage stage);
  void end_commit(std::uint32_t ticket);
  void break_store(const detail::IoFailure& failure);
  void fail_write(Operation& operation, const detail::IoFailure& failure);
  [[noreturn]] void throw_failure(const detail::IoFailure& failure, std::string_view context) const;

  // Destroyed last to first: the engine waits for its requests before files and buffers go.
  StoreMap map_;
  StoreLayout layout_;
  std::vector<detail::SwapFile> files_;
  std::vector<int> descriptors_;
  detail::AlignedBuffer record_;
  std::unique_ptr<IoEngine> engine_;
  detail::TransferQueue transfers_;

  detail::TileVersions versions_;
  std::vector<Operation> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::vector<std::uint32_t> deferred_;  // writes that wait for a slot, oldest first
  std::vector<bool> dirty_;              // files written since their last flush
  std::optional<CommitHeader> committed_;
  bool is_older_ = false;      // `committed_`, than the newest
  CommitHeader next_commit_;   // of the commit in progress
  CommitHeader first_commit_;  // has the memory that `committed_` takes with the first one
  std::optional<std::uint32_t> commit_ticket_;
  Stage stage_ = Stage::data_flush;
  std::size_t stage_jobs_ = 0;
  std::uint64_t generation_ = 0;
  std::size_t area_ = 0;                     // that holds the newest record
  std::optional<detail::IoFailure> broken_;  // by a failed commit
  StoreCounters counters_;
};

}  // namespace spillway::nvme_swap
