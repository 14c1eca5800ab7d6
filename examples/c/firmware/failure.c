#include "failure.h"

#include "machine.h"

void check(bv_device *device, const char *what, int32_t result)
{
    static char text[200];
    if (result >= 0)
        return;
    bv_strerror_detail(device, text, sizeof text);
    print("failed: ");
    print(what);
    print(": ");
    print(text);
    print("\n");
    end(1);
}

void require(const char *what, int holds)
{
    if (holds)
        return;
    print("failed: ");
    print(what);
    print("\n");
    end(1);
}
