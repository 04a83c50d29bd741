#include "runtime/plan/machine_profile.hpp"

namespace spillway::plan {

MachineProfile at_pace(MachineProfile profile, double Pace::*quarter) {
  const Paces& paces = profile.paces;
  profile.gpu_flops *= paces.compute.*quarter;
  for (double* rate : {&profile.h2d, &profile.d2h, &profile.h2d_d2h_combined}) {
    *rate *= paces.link.*quarter;
  }
  profile.update *= paces.update.*quarter;
  profile.disk.checksum *= paces.update.*quarter;
  for (double* rate : {&profile.nvme_read, &profile.nvme_write, &profile.nvme_combined}) {
    *rate *= paces.disk.*quarter;
  }
  profile.disk.commit_seconds /= paces.disk.*quarter;
  return profile;
}

}  // namespace spillway::plan
