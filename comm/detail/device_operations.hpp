// DeviceOperations: what a DeviceCommunicator and its subgroups have started, what ranks tell each
// other of it over the host's communicator, and who is to blame when it does not end.
//
// Threads: the control thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/detail/call.hpp"
#include "comm/detail/device_link.hpp"
#include "comm/detail/device_record.hpp"
#include "comm/detail/members.hpp"
#include "comm/device_communicator.hpp"
#include "runtime/base/ticket.hpp"

namespace spillway::comm::detail {

/// State of one group: that of all ranks, or a subgroup.
struct DeviceGroup {
  DeviceGroup(Members ranks, Communicator& communicator)
      : members(std::move(ranks)), host(communicator) {}
  DeviceGroup(Members ranks, std::unique_ptr<Communicator> communicator)
      : members(std::move(ranks)), own_host(std::move(communicator)), host(*own_host) {}

  const Members members;
  const std::unique_ptr<Communicator> own_host{};  ///< null for all ranks
  Communicator& host;
  std::unique_ptr<DeviceLink> link{};
  std::uint64_t collectives = 0;
  SentBytes sent{};
};

class DeviceOperations {
 public:
  DeviceOperations(Communicator& host, const DeviceCommunicatorOptions& options);
  ~DeviceOperations();
  DeviceOperations(const DeviceOperations&) = delete;
  DeviceOperations& operator=(const DeviceOperations&) = delete;

  [[nodiscard]] DeviceGroup& all() { return *groups_.front(); }
  /// Returns a group of some of the ranks `of`, which lives as long as this object.
  [[nodiscard]] DeviceGroup& add_subgroup(const DeviceGroup& of, std::span<const Rank> some);
  void start(DeviceGroup& group, const Call& call, void* stream);
  [[nodiscard]] bool watch();
  void wait();

 private:
  struct Started {
    DeviceGroup* group = nullptr;
    Call call{};
    DeviceRecord mine{};
    std::vector<DeviceRecord> theirs;  // of all ranks, or of the one that is received from
    Ticket agreement;
  };

  [[nodiscard]] std::size_t slot_of(std::uint64_t number) const { return number % ring_.size(); }
  [[nodiscard]] bool all_over() const { return over_ == started_; }
  [[nodiscard]] Rank rank() const { return groups_.front()->members.rank(); }

  /// Calls `body`. What it throws ends all groups, and every later call throws the same.
  template <class Body>
  void guarded(Body body);
  void end_groups(std::string_view reason) noexcept;
  void join(DeviceGroup& group);
  /// Sends the record of `started` to the ranks that take part, and receives theirs.
  [[nodiscard]] Ticket exchange_records(Started& started);
  /// Waits for the records of the other ranks and throws if they do not fit.
  void agree(Started& started) const;
  /// Checks what was started, in order, up to the first that is not over.
  void advance();
  void check_health();
  /// Throws what keeps the oldest operation from its end.
  [[noreturn]] void find_cause(std::string_view symptom);

  const DeviceCommunicatorOptions options_;
  const std::chrono::milliseconds timeout_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<Started> ring_;
  std::uint64_t started_ = 0;
  std::uint64_t over_ = 0;
  std::chrono::steady_clock::time_point progress_{};  // when something was over or agreed on last
  std::exception_ptr failure_;
  std::vector<std::unique_ptr<DeviceGroup>> groups_;  // that of all ranks is the first
};

}  // namespace spillway::comm::detail
