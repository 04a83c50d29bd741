#include "comm/tcp/proof.hpp"

#include <sodium.h>

#include <span>

#include "runtime/base/error.hpp"

namespace spillway::comm::detail {
namespace {

static_assert(sizeof(Key) == crypto_auth_hmacsha256_KEYBYTES);
static_assert(sizeof(Proof::code) == crypto_auth_hmacsha256_BYTES);

/// Chooses the code for this processor, and opens the source of randomness.
void prepare() {
  static const int status = ::sodium_init();
  check(status >= 0, ErrorCode::device_error, "libsodium finds no source of randomness");
}

const unsigned char* octets(const void* data) { return static_cast<const unsigned char*>(data); }
unsigned char* octets(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }

}  // namespace

Key key_of(std::string_view secret) {
  prepare();
  Key key;
  static_assert(sizeof key == crypto_generichash_BYTES);
  ::crypto_generichash(octets(key.data()), key.size(), octets(secret.data()), secret.size(),
                       nullptr, 0);
  return key;
}

std::string random_secret() {
  const Nonce bytes = random_nonce();
  std::string text(2 * bytes.size() + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), octets(bytes.data()), bytes.size());
  text.pop_back();  // the end of C
  return text;
}

Nonce random_nonce() {
  prepare();
  Nonce nonce;
  ::randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof prove(const Key& key, Side side, const Hello& hello, const Challenge& challenge) {
  prepare();
  crypto_auth_hmacsha256_state state;
  ::crypto_auth_hmacsha256_init(&state, octets(key.data()), key.size());
  ::crypto_auth_hmacsha256_update(&state, octets(&side), sizeof side);
  ::crypto_auth_hmacsha256_update(&state, octets(&hello), sizeof hello);
  ::crypto_auth_hmacsha256_update(&state, octets(&challenge), sizeof challenge);
  Proof proof;
  ::crypto_auth_hmacsha256_final(&state, octets(proof.code.data()));
  return proof;
}

bool is_proved(const Key& key, Side side, const Hello& hello, const Challenge& challenge,
               const Proof& proof) {
  const Proof expected = prove(key, side, hello, challenge);
  return proof.magic == expected.magic &&
         ::sodium_memcmp(proof.code.data(), expected.code.data(), proof.code.size()) == 0;
}

}  // namespace spillway::comm::detail
