// Empty: this file exists so that the precompiled torch header has a target to belong to.
