#include <stdio.h>

#include "regolith.h"

int main(void) {
    printf("regolith %s\n", RG_VERSION);
    return 0;
}
