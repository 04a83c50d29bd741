// A rank's part of its machine, as a plan shows it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace spillway::engine {

/// Where a rank computes and keeps its state, in words and numbers to show.
struct ShownShare {
  std::string machine;
  std::vector<std::uint32_t> nodes;  ///< of NUMA, whose cores the rank has
  std::uint32_t cores = 0;           ///< of its own; 0: there are more ranks than cores
  bool bound = false;                ///< it runs on these alone, as the system has agreed
  std::uint32_t threads = 0;         ///< of the update
  std::string gpu;                   ///< on the PCI bus; empty for the host
  std::vector<std::string> state;    ///< directories
};

}  // namespace spillway::engine
