func.func @step(%ids: tensor<?xi32>
