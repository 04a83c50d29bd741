// What ranks of the backend `tcp` tell each other when they meet and between their transfers, and
// the checks of it: whoever reaches a port may send anything. Pure; any thread.
//
// Everything is sent as it lies in memory. A machine of another byte order is told by the magic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

namespace spillway::comm::detail {

inline constexpr std::uint32_t kTcpVersion = 2;
/// Bounds the sockets that a rank needs: two for each other rank.
inline constexpr std::uint32_t kMostTcpRanks = 4096;

/// Use of a connection. That of a meeting becomes one of notices. That of a failure carries one
/// notice, of a process that cannot be a rank: its hello has no rank that counts.
enum class Purpose : std::uint32_t { meeting = 1, notices = 2, data = 3, failure = 4 };

/// Source of the key by which a rank proves that it belongs to this job.
enum class KeySource : std::uint32_t {
  nobody,       ///< there is none: whoever reaches the port may be a rank
  environment,  ///< SPILLWAY_JOB_SECRET
  file,         ///< one that rank 0 has made in a directory of the job
};
[[nodiscard]] std::string_view name_of(KeySource source);

/// Random, so that no earlier proof fits it.
using Nonce = std::array<std::byte, 32>;

/// First message of the end that connects. Magic and version have these places in every version.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x6f6c6c6568'776c70;

  std::uint64_t magic = kMagic;
  std::uint32_t version = kTcpVersion;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 0;
  Purpose purpose = Purpose::meeting;
  std::uint32_t port = 0;  ///< where this rank takes connections itself; 0: it is not asked
  KeySource key = KeySource::nobody;
  char job[128] = {};  ///< what the launcher calls the job; its first 127 bytes count
  Nonce nonce{};

  [[nodiscard]] std::string_view job_name() const;
  void set_job(std::string_view name);
};
static_assert(sizeof(Hello) == 192);
/// After so many bytes of a hello it is known whether the rest is one.
inline constexpr std::size_t kHelloHead = 12;

/// What to do with the sender of a hello.
struct Verdict {
  enum class Kind : std::uint8_t {
    stranger,  ///< no rank of Spillway
    refused,   ///< a rank, but none that can be admitted here
    member,    ///< a rank of this job, if it proves it
  };
  Kind kind = Kind::stranger;
  std::string reason{};  ///< of a refusal
};
/// Judges the first kHelloHead bytes of a hello.
[[nodiscard]] Verdict judge_head(const Hello& hello, const Hello& own);
/// Judges what was sent to a rank that would itself have said `own`.
[[nodiscard]] Verdict judge(const Hello& hello, const Hello& own);

/// Answers a hello that was heard: who called is to prove that it is of this job.
struct Challenge {
  static constexpr std::uint64_t kMagic = 0x65676e656c'6c6863;

  std::uint64_t magic = kMagic;
  Nonce nonce{};
};
static_assert(sizeof(Challenge) == 40);

/// Proves that who sends it has the key of this job (comm/tcp/proof.hpp): first who has called,
/// then who was called.
struct Proof {
  static constexpr std::uint64_t kMagic = 0x666f6f7270'776c70;

  std::uint64_t magic = kMagic;
  std::array<std::byte, 32> code{};
};
static_assert(sizeof(Proof) == 40);

/// Where a rank takes connections.
struct Place {
  char host[46] = {};  ///< a numeric address; empty: the machine on which rank 0 is
  std::uint16_t port = 0;

  [[nodiscard]] std::string_view host_name() const;
};
static_assert(sizeof(Place) == 48);

/// The only message on a connection of notices: rank 0's welcome, followed by the places of all
/// ranks, then those that say that a rank is at work, and at most one with the reason why the
/// connection ends. A caller that is not admitted gets one too.
struct Notice {
  static constexpr std::uint64_t kMagic = 0x656369746f'776c70;
  enum class Kind : std::uint32_t { welcome = 1, left = 2, failed = 3, refused = 4, at_work = 5 };

  std::uint64_t magic = kMagic;
  Kind kind = Kind::left;
  std::uint32_t rank = 0;  ///< which has failed, or refuses
  std::int32_t code = 0;   ///< an ErrorCode
  char reason[492] = {};

  [[nodiscard]] std::string_view text() const;
  [[nodiscard]] Error error() const;
};
static_assert(sizeof(Notice) == 512);

[[nodiscard]] Notice failure_notice(Rank rank, ErrorCode code, std::string_view reason);
[[nodiscard]] Notice refusal_notice(Rank rank, std::string_view reason);
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
