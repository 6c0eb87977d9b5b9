"""trnblas"""
