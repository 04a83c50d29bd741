// DeviceOperations: what DeviceCommunicator has started, what ranks tell each other of it over the
// host's communicator, and who is to blame when it does not end.
//
// Threads: the control thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/detail/call.hpp"
#include "comm/detail/device_link.hpp"
#include "comm/detail/device_record.hpp"
#include "comm/device_communicator.hpp"
#include "runtime/base/ticket.hpp"

namespace spillway::comm::detail {

class DeviceOperations {
 public:
  DeviceOperations(Communicator& host, const DeviceCommunicatorOptions& options);
  ~DeviceOperations();
  DeviceOperations(const DeviceOperations&) = delete;
  DeviceOperations& operator=(const DeviceOperations&) = delete;

  void start(const Call& call, void* stream);
  [[nodiscard]] bool watch();
  void wait();
  [[nodiscard]] const SentBytes& sent() const { return sent_; }

 private:
  struct Started {
    Call call{};
    DeviceRecord mine{};
    std::vector<DeviceRecord> theirs;  // of all ranks, or of the one that is received from
    Ticket agreement;
  };

  [[nodiscard]] std::size_t slot_of(std::uint64_t number) const { return number % ring_.size(); }
  [[nodiscard]] bool all_over() const { return over_ == started_; }

  /// Calls `body`. What it throws ends the group, and every later call throws the same.
  template <class Body>
  void guarded(Body body);
  void end_group(std::string_view reason) noexcept;
  void join();
  /// Tells the ranks that take part in `started` of it, and learns of theirs.
  [[nodiscard]] Ticket exchange_records(Started& started);
  /// Waits for the records of the other ranks and throws if they do not fit.
  void agree(Started& started) const;
  /// Looks at what has been started, in order, until something is not over.
  void advance();
  void check_health();
  /// Throws what keeps the oldest operation from its end.
  [[noreturn]] void find_cause(std::string_view symptom);

  Communicator& host_;
  const std::chrono::milliseconds timeout_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<Started> ring_;
  std::uint64_t started_ = 0;
  std::uint64_t over_ = 0;
  std::uint64_t collectives_ = 0;
  std::chrono::steady_clock::time_point progress_{};  // when something was over or agreed on last
  SentBytes sent_;
  std::exception_ptr failure_;
  std::unique_ptr<DeviceLink> link_;
};

}  // namespace spillway::comm::detail
