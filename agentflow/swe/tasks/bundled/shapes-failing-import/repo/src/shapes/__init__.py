"""Small vector scenes: `shapes.scene.Scene`, drawn by `shapes.render`."""
