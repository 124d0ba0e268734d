/* store: the prefix cache on disk. */
#ifndef RG_STORE_H
#define RG_STORE_H

#include "store/vault.h"

#endif
