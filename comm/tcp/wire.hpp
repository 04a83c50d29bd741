// What ranks of the backend `tcp` tell each other when they meet and between their transfers, and
// the checks of it: whoever reaches a port may send anything. Pure; any thread.
//
// Everything is sent as it lies in memory. A machine of another byte order is told by the magic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm::detail {

inline constexpr std::uint32_t kTcpVersion = 1;
/// Bounds the sockets that a rank needs: two for each other rank.
inline constexpr std::uint32_t kMostTcpRanks = 4096;

/// Says what a connection is for. A meeting's becomes that of notices.
enum class Purpose : std::uint32_t { meeting = 1, notices = 2, data = 3 };

/// Is the first that who connects says.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x6f6c6c6568'776c70;

  std::uint64_t magic = kMagic;
  std::uint32_t version = kTcpVersion;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  Purpose purpose = Purpose::meeting;
  std::uint64_t port = 0;  ///< where this rank takes connections itself; 0: it is not asked
  char job[128] = {};      ///< what the launcher calls the job; its first 127 bytes count

  [[nodiscard]] std::string_view job_name() const;
  void set_job(std::string_view name);
};
static_assert(sizeof(Hello) == 160);

enum class Visitor : std::uint8_t {
  stranger,   ///< no rank of Spillway
  other_job,  ///< a rank, but not one of this job
  member,
};

/// Says who has sent `hello` to a rank that would itself have said `own`. Throws
/// `Error{invalid_argument}`, which says what is wrong, for a rank of this job that cannot be one.
[[nodiscard]] Visitor check_hello(const Hello& hello, const Hello& own);

/// Says where a rank takes connections.
struct Place {
  char host[46] = {};  ///< a numeric address; empty: the machine on which rank 0 is
  std::uint16_t port = 0;

  [[nodiscard]] std::string_view host_name() const;
};
static_assert(sizeof(Place) == 48);

/// Is all that a connection of notices carries: rank 0's welcome, which the places of all ranks
/// follow, and then at most one that says why the connection ends.
struct Notice {
  static constexpr std::uint64_t kMagic = 0x656369746f'776c70;
  enum class Kind : std::uint32_t { welcome = 1, left = 2, failed = 3 };

  std::uint64_t magic = kMagic;
  Kind kind = Kind::left;
  std::uint32_t rank = 0;  ///< which has failed
  std::int32_t code = 0;   ///< an ErrorCode
  char reason[492] = {};

  [[nodiscard]] std::string_view text() const;
  [[nodiscard]] Error error() const;
};
static_assert(sizeof(Notice) == 512);

[[nodiscard]] Notice failure_notice(Rank rank, ErrorCode code, std::string_view reason);
/// Returns `received` if it is a notice, with a reason that is safe to print.
[[nodiscard]] std::optional<Notice> check_notice(Notice received);

/// Precedes the bytes of a transfer.
struct Frame {
  static constexpr std::uint32_t kMagic = 0x6d617266;

  std::uint32_t magic = kMagic;
  std::uint32_t number = 0;  ///< of the pair's transfers in this direction, wrapping
  std::uint64_t bytes = 0;

  bool operator==(const Frame&) const = default;
};
static_assert(sizeof(Frame) == 16);

/// Throws `Error{device_error}` unless rank `from` has sent the frame that is expected.
void check_frame(const Frame& received, const Frame& expected, Rank from);

}  // namespace spillway::comm::detail
