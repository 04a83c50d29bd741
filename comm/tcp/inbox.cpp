#include "comm/tcp/inbox.hpp"

#include <fmt/format.h>

#include <cstring>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {

std::optional<Notice> Inbox::hear() {
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
  if (received_ < sizeof notice_) return std::nullopt;
  const std::optional<Notice> notice = check_notice(notice_);
  if (notice.has_value() && notice->kind == Notice::Kind::failed) return notice;
  check(notice.has_value() && notice->kind == Notice::Kind::left, ErrorCode::device_error,
        fmt::format("rank {} has sent something else than a notice", peer_.value()));
  left_ = true;
  return std::nullopt;
}

}  // namespace spillway::comm::detail
