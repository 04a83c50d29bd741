#include "comm/tcp/inbox.hpp"

#include <fmt/format.h>

#include <cstring>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {

std::optional<Notice> Inbox::hear() {
  while (!left_) {
    const Moved more = receive_some(socket_, writable_bytes_of(notice_).subspan(received_));
    if (more.state == Transfer::none_now) return std::nullopt;
    if (more.state == Transfer::closed) {
      throw Error(
          ErrorCode::device_error,
          fmt::format("rank {} has died: {}", peer_.value(),
                      more.error == 0 ? "its connections have closed" : std::strerror(more.error)),
          more.error);
    }
    received_ += more.bytes;
    if (received_ < sizeof notice_) continue;
    received_ = 0;
    const std::optional<Notice> notice = check_notice(notice_);
    const auto kind = notice.has_value() ? notice->kind : Notice::Kind::welcome;
    if (kind == Notice::Kind::failed) return notice;
    check(kind == Notice::Kind::left || kind == Notice::Kind::at_work, ErrorCode::device_error,
          fmt::format("rank {} has sent something else than a notice", peer_.value()));
    left_ = kind == Notice::Kind::left;
    if (!left_) at_work_ = std::chrono::steady_clock::now();
  }
  return std::nullopt;
}

}  // namespace spillway::comm::detail
