func.func @scale_c12()
func.func @scale_c1_more()
func.func @scale_c2()
