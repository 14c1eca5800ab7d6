/* Ends of a program that cannot go on. */
#ifndef FAILURE_H
#define FAILURE_H

#include "bareverbs.h"

/* Ends the program if a call on a device has failed, with the text of its error. */
void check(bv_device *device, const char *what, int32_t result);
/* Ends the program with this text if something does not hold. */
void require(const char *what, int holds);

#endif
