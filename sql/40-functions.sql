-- The functions for users that start a command of the driver, made from their specifications in madlib_mop/calls/.

@FUNCTIONS@
