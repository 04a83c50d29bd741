// Ticket: a pending NVMe or CPU operation, move-only and one-shot.
#pragma once

#include <cstdint>
#include <utility>

namespace spillway {

/// Who runs operations and knows their outcome. Slots come from a fixed pool that the source owns,
/// so that a ticket costs no allocation. Called by the control thread only.
class TicketSource {
 public:
  /// Returns true once the operation is over, well or badly. Makes progress if the source needs a
  /// caller's thread for that (io_uring). Does not block.
  [[nodiscard]] virtual bool ready(std::uint32_t slot) = 0;
  /// Blocks until over, frees the slot, throws what the operation failed with.
  virtual void finish(std::uint32_t slot) = 0;

 protected:
  ~TicketSource() = default;
};

/// Owns one slot of a source. Whoever holds the ticket keeps alive, beside it, every buffer that
/// the operation uses. Destroying a pending ticket waits; an error nobody asked for is logged.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;
  Ticket(TicketSource& source, std::uint32_t slot) : source_(&source), slot_(slot) {}
  Ticket(Ticket&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)), slot_(other.slot_) {}
  Ticket& operator=(Ticket&& other) noexcept {
    if (this != &other) {
      abandon();
      source_ = std::exchange(other.source_, nullptr);
      slot_ = other.slot_;
    }
    return *this;
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() { abandon(); }

  /// Returns true while an operation is attached, whether or not it is over.
  [[nodiscard]] bool pending() const { return source_ != nullptr; }
  [[nodiscard]] bool ready() const { return source_ == nullptr || source_->ready(slot_); }

  /// Blocks until the operation is over and detaches it. Throws the operation's error.
  void wait() {
    if (source_ != nullptr) std::exchange(source_, nullptr)->finish(slot_);
  }

 private:
  void abandon() noexcept;

  TicketSource* source_ = nullptr;
  std::uint32_t slot_ = 0;
};

}  // namespace spillway
