// How long the program's OpenMP threads spin at the end of a parallel region before they sleep.
#pragma once

namespace spillway::cli {

/// Bounds the spinning, unless the user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT. The OpenMP
/// runtime reads them when it is loaded, before anything of the program runs, so the process
/// starts its own program again with `arguments`, those of main; where it cannot, it goes on
/// unbounded. Call first of all in main: what was open or allocated before is lost.
void bound_waiting(char** arguments);

}  // namespace spillway::cli
