#ifndef RG_FORGE_DOCTOR_H
#define RG_FORGE_DOCTOR_H
#endif
