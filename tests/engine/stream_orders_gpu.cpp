#include "tests/engine/stream_orders.hpp"

namespace spillway::engine {

void for_each_stream_order(const std::function<void(std::uint64_t)>& body) { body(0); }

}  // namespace spillway::engine
