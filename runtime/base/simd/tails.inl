// The first lanes of a vector, of which there may be none, where no instruction has a mask for
// them: through a buffer. Part of avx2.hpp and portable.hpp, inside their namespaces.

inline Float load_first(std::size_t count, const float* p, Float rest) {
  float buffer[kWidth];
  store(buffer, rest);
  __builtin_memcpy(buffer, p, count * sizeof(float));
  return load(buffer);
}
inline Half load_half_first(std::size_t count, const void* p) {
  std::uint16_t buffer[kWidth] = {};
  __builtin_memcpy(buffer, p, count * sizeof(std::uint16_t));
  return load_half(buffer);
}
inline void store_first(std::size_t count, float* p, Float x) {
  float buffer[kWidth];
  store(buffer, x);
  __builtin_memcpy(p, buffer, count * sizeof(float));
}
inline void store_half_first(std::size_t count, void* p, Half x) {
  std::uint16_t buffer[kWidth];
  store_half(buffer, x);
  __builtin_memcpy(p, buffer, count * sizeof(std::uint16_t));
}
inline Float first(std::size_t count, Float x, Float rest) {
  float buffer[kWidth];
  store(buffer, x);
  return load_first(count, buffer, rest);
}
