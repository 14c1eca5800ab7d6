// The header is C++ too.
#include "bareverbs.h"

extern "C" unsigned use_from_cpp(bv_device *device);

unsigned use_from_cpp(bv_device *device)
{
    bv_wc wc = bv_wc();
    bv_cq cq = {1, 2};
    return static_cast<unsigned>(bv_poll_cq(device, cq, &wc, 1)) + wc.status;
}
