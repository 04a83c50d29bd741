#include "tests/engine/stream_orders.hpp"
#include "tests/support/cuda_emulation/emulation.hpp"

namespace spillway::engine {

void for_each_stream_order(const std::function<void(std::uint64_t)>& body) {
  for (const std::uint64_t order :
       {std::uint64_t{cuda_emulation::late}, std::uint64_t{cuda_emulation::early}, std::uint64_t{7},
        std::uint64_t{8}, std::uint64_t{9}}) {
    cuda_emulation::set_order(order);
    body(order);
  }
  cuda_emulation::set_order(cuda_emulation::late);
}

}  // namespace spillway::engine
