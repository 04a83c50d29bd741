// Proofs that a process is a rank of this job: an HMAC (SHA-256, RFC 2104) under the job's key of
// what both ends have said, which holds a random number of each. Pure but for the randomness; any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "comm/tcp/wire.hpp"

namespace spillway::comm::detail {

using Key = std::array<std::byte, 32>;

/// Returns the key that a text stands for.
[[nodiscard]] Key key_of(std::string_view secret);
/// Returns a text of 64 hexadecimal digits that nobody can guess.
[[nodiscard]] std::string random_secret();
[[nodiscard]] Nonce random_nonce();

/// The end that proves something. A proof of one end is of no use to the other.
enum class Side : std::uint8_t { caller = 1, called = 2 };

[[nodiscard]] Proof prove(const Key& key, Side side, const Hello& hello,
                          const Challenge& challenge);
[[nodiscard]] bool is_proved(const Key& key, Side side, const Hello& hello,
                             const Challenge& challenge, const Proof& proof);

}  // namespace spillway::comm::detail
